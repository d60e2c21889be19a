{{/* The user name of queuectl's ServiceAccount. The admission policies contain it, because only it may start queued jobs. */}}
{{- define "queuectl.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:queuectl
{{- end }}

{{/* The user name of the training operator, which creates the pods of PyTorchJobs. */}}
{{- define "queuectl.trainingOperator" -}}
system:serviceaccount:{{ .Values.trainingOperator.namespace }}:{{ .Values.trainingOperator.serviceAccount }}
{{- end }}

{{- define "queuectl.image" -}}
{{- $image := required "image.repository is required: the repository of your image of queuectl" .Values.image.repository -}}
{{- with .Values.image.digest }}{{ $image }}@{{ . }}{{ else }}{{ $image }}:{{ $.Values.image.tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The security context of each container. */}}
{{- define "queuectl.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The variables for the connection to the database. Parameters of the URL take precedence over those of libpq. */}}
{{- define "queuectl.databaseConnection" -}}
{{- with .Values.database.sslMode }}
- name: PGSSLMODE
  value: {{ . }}
{{- end }}
{{- if .Values.database.caSecretName }}
- name: PGSSLROOTCERT
  value: /etc/queuectl/database/ca.crt
{{- end }}
{{- with .Values.database.pgbouncer }}
- name: QUEUECTL_DATABASE_PGBOUNCER
  value: {{ . }}
- name: QUEUECTL_DATABASE_DIRECT_URL
  valueFrom:
    secretKeyRef: {name: {{ $.Values.database.secretName }}, key: direct-url, optional: true}
{{- end }}
{{- end }}

{{- define "queuectl.databaseMount" -}}
{{- if or .Values.database.caSecretName .Values.database.passwordFiles }}
- {name: database, mountPath: /etc/queuectl/database, readOnly: true}
{{- end }}
{{- end }}

{{/* The certificate authority and the passwords of the database. Changed Secrets need no restart. */}}
{{- define "queuectl.databaseVolume" -}}
{{- if or .Values.database.caSecretName .Values.database.passwordFiles }}
- name: database
  projected:
    defaultMode: 0440
    sources:
    {{- with .Values.database.caSecretName }}
    - secret:
        name: {{ . }}
        items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
    {{- if .Values.database.passwordFiles }}
    - secret:
        name: {{ .Values.database.secretName }}
        items:
        - {key: migration-password, path: migration-password}
        - {key: password, path: password}
        - {key: api-password, path: api-password}
    {{- end }}
{{- end }}
{{- end }}

{{/* Metadata of a pod. Arguments: its name as label, and the root. */}}
{{- define "queuectl.podMetadata" -}}
{{- $name := first . }}{{ with last . -}}
labels:
  app.kubernetes.io/name: {{ $name }}
  {{- with .Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with .Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The nodes of the pods of a Deployment or a StatefulSet, and the credentials for their image there. Arguments as above. */}}
{{- define "queuectl.nodes" -}}
{{- $name := first . }}{{ with last . -}}
{{- with .Values.imagePullSecrets -}}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{ end }}
{{- with .Values.nodeSelector -}}
nodeSelector: {{- toYaml . | nindent 2 }}
{{ end }}
{{- with .Values.tolerations -}}
tolerations: {{- toYaml . | nindent 0 }}
{{ end }}
{{- with .Values.affinity -}}
affinity: {{- toYaml . | nindent 2 }}
{{ end -}}
# Replicas on different nodes, if there are several that fit.
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ $name }}}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
