{{/* The user name of queuectl's ServiceAccount. The admission policies contain it, because only it may start queued jobs. */}}
{{- define "queuectl.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:queuectl
{{- end }}

{{/* The user names of the controllers of jobs, as the elements of a list of CEL: they create the pods of jobs, or objects whose
controllers create the pods. */}}
{{- define "queuectl.operators" -}}
{{- $root := . }}{{ $accounts := list -}}
{{- range (include "queuectl.kinds" . | fromYaml).kinds }}
{{- $one := .controller | default (get $root.Values (.operator | default "trainingOperator")) | default dict }}
{{- if $one.serviceAccount }}{{ $accounts = append $accounts (printf "system:serviceaccount:%s:%s" $one.namespace $one.serviceAccount) }}{{ end }}
{{- end -}}
'{{ join "', '" (uniq $accounts) }}'
{{- end }}

{{/* The names of the labels of queuectl on pods and their templates, without the prefix, as the elements of a list of CEL. */}}
{{- define "queuectl.ownLabels" -}}
'attempt', 'podset', 'workload', 'workload-kind', 'ranks-per-group', 'first-rank'
{{- end }}

{{/* Those of them that the controller writes at a start. No new job has them. */}}
{{- define "queuectl.laterLabels" -}}
'workload', 'ranks-per-group', 'first-rank'
{{- end }}

{{/* Whether a pod template has the gate or a label of queuectl. Argument: an optional with the template. */}}
{{- define "queuectl.marked" -}}
({{ . }}.?spec.?schedulingGates.orValue([]).exists(gate, gate.name == 'queuectl.dev/placement')
  || [{{ include "queuectl.ownLabels" . }}].exists(name,
    {{ . }}.?metadata.?labels[?('queuectl.dev/' + name)].hasValue()))
{{- end }}

{{/* Whether the pods of an entry have the gate or a label of queuectl. Arguments: the place, and the entry. */}}
{{- define "queuectl.markedEntry" -}}
{{- if (first .).labels -}}
[{{ include "queuectl.ownLabels" . }}].exists(name, {{ include "queuectl.field" (list (last .) (first .).labels.path) }}[?('queuectl.dev/' + name)].hasValue())
|| {{ include "queuectl.marked" (print (last .) ".?template") }}
{{- else -}}
{{ include "queuectl.marked" (include "queuectl.field" (list (last .) (include "queuectl.template" (first .)))) }}
{{- end }}
{{- with (first .).addedLabels }}
|| [{{ include "queuectl.ownLabels" . }}].exists(name, {{ include "queuectl.field" (list (last $) .) }}[?('queuectl.dev/' + name)].hasValue())
{{- end }}
{{- end }}

{{/* Whether a request is by the controller of a job for an object that belongs to the job. Arguments: the root, and an optional with the pod
template. A user can write owner references and labels, but is not that controller. */}}
{{- define "queuectl.byParent" -}}
request.userInfo.username in [{{ include "queuectl.operators" (index . 0) }}]
  && {{ index . 1 }}.?metadata.?labels[?'queuectl.dev/workload-kind'].hasValue()
{{- end }}

{{/* Whether a new object names itself in the annotation queuectl.dev/after. Arguments: its kind, and its name as an expression. */}}
{{- define "queuectl.afterItself" -}}
object.metadata.?annotations[?'queuectl.dev/after'].orValue('').split(',')
  .exists(one, one.trim().lowerAscii().split(':')[0] == '{{ lower (first .) }}/' + {{ last . }})
{{- end }}

{{/* Whether a new object lists more jobs in the annotation queuectl.dev/after than it can depend on. */}}
{{- define "queuectl.afterTooMany" -}}
object.metadata.?annotations[?'queuectl.dev/after'].orValue('').split(',').size() > 100
{{- end }}

{{/* Whether there are few labels and annotations, or as many as before. The API server counts the cost of an expression with a loop over a map in a
time that is quadratic in its size: 0.1 s for 1,000 labels, 10 s for 30,000. Arguments: the expressions of the new and the old metadata, and the limit. */}}
{{- define "queuectl.few" -}}
{{- range $i, $keys := list "labels" "annotations" }}
{{- $new := printf "%s.?%s.orValue({}).size()" (index $ 0) $keys }}{{ if $i }}
&& {{ end }}({{ $new }} <= {{ index $ 2 }}
  || {{ $new }} <= {{ index $ 1 }}.?{{ $keys }}.orValue({}).size())
{{- end }}
{{- end }}

{{/* The same for an object that is a job or a pod. */}}
{{- define "queuectl.fewKeys" -}}
{{ include "queuectl.few" (list "object.metadata" "oldObject.?metadata" 500) }}
{{- end }}

{{/* The same for each pod template of a kind. Argument: the kind. */}}
{{- define "queuectl.fewTemplateKeys" -}}
{{ include "queuectl.eachPodSet" (list . "object" (include "queuectl.few" (list "NEW_TEMPLATE.?metadata" "OLD_TEMPLATE.?metadata" 100))) }}
{{- end }}

{{/* The same for a Job of batch/v1 and its pod template. */}}
{{- define "queuectl.fewJobKeys" -}}
{{ include "queuectl.fewKeys" . }}
&& {{ include "queuectl.few" (list "object.spec.template.metadata" "oldObject.?spec.?template.?metadata" 100) }}
{{- end }}

{{- define "queuectl.fewKeysMessage" -}}
a job or a pod in a queue has at most 500 labels and 500 annotations, and its pod template 100 of each: remove some
{{- end }}

{{/* The kind whose pod templates are in the objects of a kind, as YAML; empty if there is none. Arguments: the root, and the kind. */}}
{{- define "queuectl.parent" -}}
{{- $kind := last . -}}
{{- range (include "queuectl.kinds" (first .) | fromYaml).kinds }}{{ if and .patches (eq (first .children).plural $kind.plural) }}{{ toYaml . }}{{ end }}{{ end -}}
{{- end }}

{{/* Whether a new object is by the controller of a job for an object that belongs to the job: its first template has a label of queuectl. The
object with the pod templates of a job has the label itself. Arguments: the root, and the kind. */}}
{{- define "queuectl.forQueuedJob" -}}
{{- $parent := include "queuectl.parent" . -}}
{{ include "queuectl.byParent" (list (first .) (include "queuectl.firstTemplate" (list (last .) "object"))) }}
{{- if $parent }}
  || request.userInfo.username in [{{ include "queuectl.operators" (first .) }}]
  && object.metadata.?labels[?'queuectl.dev/workload-kind'].orValue('') == '{{ (fromYaml $parent).kind }}'
{{- end }}
{{- end }}

{{/* Whether an object belongs to a queued job of another kind, by the label that the pod templates of that job have. Arguments: the kind, and the
expression of the object. */}}
{{- define "queuectl.isPart" -}}
{{ include "queuectl.firstTemplate" . }}.?metadata.?labels[?'queuectl.dev/workload-kind'].orValue('{{ (first .).kind }}') != '{{ (first .).kind }}'
{{- end }}

{{/* The rule for the updates of such objects. The controller of the job would not find one without its owner or its labels. An object with another
finalizer stays after its deletion, when its controller no longer stops its pods. The garbage collector removes owners that no longer exist.
Arguments: the root, and the expression that excludes other requests. */}}
{{- define "queuectl.partIsKept" -}}
- expression: >-
    {{ last . }}
    || (object.spec == oldObject.spec
      && (object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences
        || request.userInfo.username in [{{ include "queuectl.garbageCollectors" (first .) }}])
      && oldObject.metadata.?labels.orValue({}).all(key,
        object.metadata.?labels[?key] == oldObject.metadata.?labels[?key])
      && object.metadata.?labels[?'kueue.x-k8s.io/queue-name'] == oldObject.metadata.?labels[?'kueue.x-k8s.io/queue-name']
      && object.metadata.?finalizers.orValue([]).all(name, name in oldObject.metadata.?finalizers.orValue([])))
  message: >-
    only the controller of a job in a queue can change the spec, the owner references, the labels and the finalizers of an object that belongs
    to the job
{{- end }}

{{/* The accounts of the garbage collector, as the elements of a list of CEL. All controllers of kube-controller-manager can have one account. */}}
{{- define "queuectl.garbageCollectors" -}}
'system:serviceaccount:kube-system:generic-garbage-collector', 'system:kube-controller-manager'
{{- end }}

{{/* The kind Job, described like the others as far as policies for all kinds need it, as YAML. */}}
{{- define "queuectl.batchJob" -}}
{{ dict "kind" "Job" "group" "batch" "version" "v1" "plural" "jobs" "suspend" "spec.suspend" "podsets" (list (dict "path" "spec" "name" "main")) | toYaml }}
{{- end }}

{{/* The uids of the objects whose controllers made an object. Argument: the object. */}}
{{- define "queuectl.controllers" -}}
{{ . }}.metadata.?ownerReferences.orValue([]).filter(one, one.?controller.orValue(false)).map(one, one.uid)
{{- end }}

{{/* The changes of pod templates in an entry of a list of them, as an optional. Arguments: the patches of the kind, and the expression of the
entry. */}}
{{- define "queuectl.changes" -}}
{{ include "queuectl.field" (list (last .) (first .).changes) }}
{{- end }}

{{/* The list of changes of pod templates of an object. Arguments: the patches of the kind, and the expression of the object. */}}
{{- define "queuectl.patches" -}}
{{ include "queuectl.field" (list (last .) (first .).path) }}.orValue([])
{{- end }}

{{/* Whether the owner of an entry `one` is queuectl. Argument: the patches of the kind. */}}
{{- define "queuectl.isOurs" -}}
one.{{ .owner }} == 'queuectl.dev/controller'
{{- end }}

{{/* Variables of a policy that gates pod templates: the templates, and the PriorityClasses of the user. Argument: the kind. */}}
{{- define "queuectl.templates" -}}
# The templates with a spec, with their paths and the names of their podsets. The controller of the kind rejects the others.
{{- if and .podsets (not (include "queuectl.labelsPods" .)) }}
- name: templates
  expression: >-
    {{- range $i, $place := .podsets }}
    {{- $each := include "queuectl.eachEntry" $place | fromYaml }}
    {{- $template := include "queuectl.field" (list $each.entry (include "queuectl.template" $place)) }}
    {{ if $i }}+ {{ end }}{{ if .key }}[{{ $each.list }}.map(one, one.{{ .key }})].map(names, {{ end }}{{ $each.list }}.filter({{ $each.as }},
      {{ $template }}.?spec.hasValue())
    .map({{ $each.as }}, {
      'at': dyn({{ include "queuectl.pointer" $place }}{{ with include "queuectl.template" $place }} + '/{{ . | replace "." "/" }}'{{ end }}),
      'podset': dyn({{ $each.name }}.lowerAscii()),
      'template': dyn({{ $template }}.value())
    }){{ if .key }})[0]{{ end }}
    {{- end }}
{{- end }}
# The PriorityClasses of the user: that outside the templates first, then those of the podsets in their order.
- name: own
  expression: >-
    {{- if .podsets }}
    (
    {{- with .priorityClass }}[{{ include "queuectl.field" (list "object" .) }}.orValue('')] + {{ end -}}
    {{- range $i, $place := .podsets }}
      {{- $each := include "queuectl.eachEntry" $place | fromYaml }}
      {{- if $i }} + {{ end }}{{ if $place.types }}['{{ join "', '" $place.types }}']{{ else }}{{ $each.list }}{{ end }}.map({{ $each.as }},
        {{ include "queuectl.class" (list $place $each.entry) }}.orValue(''))
    {{- end }})
    .filter(name, !(name in ['', 'queuectl-managed']))
    {{- else }}
    []
    {{- end }}
{{- end }}

{{/* Expressions for the podsets in one place of a new object, as YAML: `list` to visit, the variable `as` for an element, the `name` of the podset
and its `entry`, an optional. An entry of a list is visited itself, because the webhook limits the steps of an expression. Argument: the place. */}}
{{- define "queuectl.eachEntry" -}}
{{- if .key -}}
{{ dict "list" (printf "%s.orValue([])" (include "queuectl.field" (list "object" .path))) "as" "one" "name" (print "one." .key) "entry" "optional.of(one)" | toYaml }}
{{- else -}}
{{ dict "list" (include "queuectl.keys" (list . "object")) "as" "type" "name" "type" "entry" (include "queuectl.entry" (list . "object" false)) | toYaml }}
{{- end }}
{{- end }}

{{/* "true" if admission gates the pods of a kind by their labels, else empty. Argument: the kind. */}}
{{- define "queuectl.labelsPods" -}}
{{- range .podsets }}{{ if .labels }}true{{ break }}{{ end }}{{ end }}
{{- end }}

{{/* The kinds whose pods admission gates by their labels, as the elements of a list of CEL. Argument: the root. */}}
{{- define "queuectl.labelKinds" -}}
{{- $kinds := list -}}
{{- range (include "queuectl.kinds" . | fromYaml).kinds }}{{ if include "queuectl.labelsPods" . }}{{ $kinds = append $kinds .kind }}{{ end }}{{ end -}}
'{{ join "', '" $kinds }}'
{{- end }}

{{/* Whether the labels of a pod say that admission gates it. Arguments: the root, and the expression of the pod. */}}
{{- define "queuectl.isLabeled" -}}
{{ last . }}.metadata.?labels[?'queuectl.dev/workload-kind'].orValue('') in [{{ include "queuectl.labelKinds" (first .) }}]
{{- end }}

{{/* Whether a new pod is one of those, and another pod creates it, which is its controller. The token of that pod names it. Arguments: as above. */}}
{{- define "queuectl.byPod" -}}
{{ include "queuectl.isLabeled" . }}
  && {{ last . }}.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false) && owner.kind == 'Pod'
    && request.userInfo.?extra[?'authentication.kubernetes.io/pod-uid'].orValue([]).exists(uid, uid == owner.uid))
{{- end }}

{{/* Whether the templates or the properties of Spark of an object have marks of queuectl, beside the labels of its podsets. Arguments: the kind, and
the expression of the object. */}}
{{- define "queuectl.markedTemplates" -}}
{{- $places := list -}}
{{- range (first .).podsets }}{{ $places = append $places (omit . "labels") }}{{ end -}}
{{ include "queuectl.markedObject" (list (merge (dict "podsets" $places) (first .)) (last .)) }}
{{- end }}

{{/* Whether a pod has the gate and the PriorityClass of queuectl. Argument: the expression of the pod. */}}
{{- define "queuectl.isGated" -}}
{{ . }}.spec.?schedulingGates.orValue([]).exists(gate, gate.name == 'queuectl.dev/placement')
  && {{ . }}.spec.?priorityClassName.orValue('') == 'queuectl-managed'
{{- end }}

{{/* The PriorityClass of the pods of an entry, as an optional. Arguments: the place, and the entry. */}}
{{- define "queuectl.class" -}}
{{- with (first .).labels }}{{ include "queuectl.field" (list (last $) .priorityClass) }}
{{- else }}{{ include "queuectl.field" (list (last .) (include "queuectl.template" (first .))) }}.?spec.?priorityClassName
{{- end }}
{{- end }}

{{/* Patches that write the labels and the PriorityClass of pods that admission gates by them. Argument: the kind. */}}
{{- define "queuectl.labeledPods" -}}
{{- $kind := .kind }}
{{- range $i, $place := .podsets }}
{{- $at := printf "/%s" ($place.path | replace "." "/") }}
{{ if $i }}+ {{ end }}{{ include "queuectl.emptyMap" (list (include "queuectl.field" (list "object" (printf "%s.%s" $place.path $place.labels.path))) (printf "%s/%s" $at $place.labels.path)) }}
+ [
  JSONPatch{op: 'add', path: '{{ $at }}/{{ $place.labels.path }}/' + jsonpatch.escapeKey('queuectl.dev/podset'), value: '{{ $place.name }}'},
  JSONPatch{op: 'add', path: '{{ $at }}/{{ $place.labels.path }}/' + jsonpatch.escapeKey('queuectl.dev/attempt'), value: '0'},
  JSONPatch{op: 'add', path: '{{ $at }}/{{ $place.labels.path }}/' + jsonpatch.escapeKey('queuectl.dev/workload-kind'), value: '{{ $kind }}'},
  JSONPatch{op: 'add', path: '{{ $at }}/{{ $place.labels.priorityClass }}', value: 'queuectl-managed'}
]
+ [{{ include "queuectl.laterLabels" . }}]
  .filter(name, {{ include "queuectl.field" (list "object" (printf "%s.%s" $place.path $place.labels.path)) }}[?('queuectl.dev/' + name)].hasValue())
  .map(name, JSONPatch{op: 'remove', path: '{{ $at }}/{{ $place.labels.path }}/' + jsonpatch.escapeKey('queuectl.dev/' + name)})
{{- end }}
{{- end }}

{{/* Patches that gate these templates. A template that was copied from a pod has values of its PriorityClass, with which the API server would
refuse pods of another class. Arguments: the kind, and the value of the label with the kind of the job; empty = no label. */}}
{{- define "queuectl.gatedTemplates" -}}
variables.templates
.filter(one, !one.template.spec.?schedulingGates.orValue([]).exists(gate, gate.name == 'queuectl.dev/placement'))
.map(one, JSONPatch{
  op: 'add',
  path: one.at + '/spec/schedulingGates',
  value: one.template.spec.?schedulingGates.orValue([])
    .map(gate, {'name': gate.name}) + [{'name': 'queuectl.dev/placement'}]
})
+ variables.templates.map(one, JSONPatch{
  op: 'add', path: one.at + '/spec/priorityClassName', value: 'queuectl-managed'
})
{{- range list "priority" "preemptionPolicy" }}
+ variables.templates.filter(one, one.template.spec.?{{ . }}.hasValue()).map(one, JSONPatch{op: 'remove', path: one.at + '/spec/{{ . }}'})
{{- end }}
+ variables.templates.filter(one, !one.template.?metadata.hasValue())
.map(one, JSONPatch{op: 'add', path: one.at + '/metadata', value: {}})
+ variables.templates.filter(one, !one.template.?metadata.?labels.hasValue())
.map(one, JSONPatch{op: 'add', path: one.at + '/metadata/labels', value: {}})
+ variables.templates.map(one, JSONPatch{
  op: 'add',
  path: one.at + '/metadata/labels/' + jsonpatch.escapeKey('queuectl.dev/podset'),
  value: one.podset
})
+ variables.templates.map(one, JSONPatch{
  op: 'add',
  path: one.at + '/metadata/labels/' + jsonpatch.escapeKey('queuectl.dev/attempt'),
  value: '0'
})
{{- with last . }}
+ variables.templates.map(one, JSONPatch{
  op: 'add',
  path: one.at + '/metadata/labels/' + jsonpatch.escapeKey('queuectl.dev/workload-kind'),
  value: '{{ . }}'
})
{{- end }}
{{- end }}

{{/* Whether a pod template of a JobSet, or the JobSet, has the gate or a label of queuectl. Argument: an optional with the JobSet. */}}
{{- define "queuectl.markedJobSet" -}}
([{{ include "queuectl.ownLabels" . }}].exists(name, {{ . }}.?metadata.?labels[?('queuectl.dev/' + name)].hasValue())
  || {{ . }}.?spec.?replicatedJobs.orValue([]).exists(job,
    [{{ include "queuectl.ownLabels" . }}].exists(name, job.?template.?metadata.?labels[?('queuectl.dev/' + name)].hasValue())
    || {{ include "queuectl.marked" "job.?template.?spec.?template" | indent 4 | trim }}))
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
{{- with .Values.database.secretName | empty | ternary "verify-full" .Values.database.sslMode }}
- name: PGSSLMODE
  value: {{ . }}
{{- end }}
{{- if or .Values.database.caSecretName (not .Values.database.secretName) }}
- name: PGSSLROOTCERT
  value: /etc/queuectl/database/ca.crt
{{- end }}
{{- with .Values.database.pgbouncer }}
- name: QUEUECTL_DATABASE_PGBOUNCER
  value: {{ . }}
- name: QUEUECTL_DATABASE_DIRECT_URL
  valueFrom:
    secretKeyRef: {name: {{ $.Values.database.secretName | quote }}, key: direct-url, optional: true}
{{- end }}
{{- end }}

{{- define "queuectl.databaseMount" -}}
{{- if or .Values.database.caSecretName .Values.database.passwordFiles (not .Values.database.secretName) }}
- {name: database, mountPath: /etc/queuectl/database, readOnly: true}
{{- end }}
{{- end }}

{{/* The certificate authority and the passwords of the database. Changed Secrets need no restart. */}}
{{- define "queuectl.databaseVolume" -}}
{{- if not .Values.database.secretName }}
# Empty until the server of the chart has created its certificate, before it writes the URLs for which the containers wait.
- name: database
  configMap: {name: queuectl-database-ca}
{{- else if or .Values.database.caSecretName .Values.database.passwordFiles }}
- name: database
  projected:
    defaultMode: 0440
    sources:
    {{- with .Values.database.caSecretName }}
    - secret:
        name: {{ . | quote }}
        items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
    {{- if .Values.database.passwordFiles }}
    - secret:
        name: {{ .Values.database.secretName | quote }}
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
{{- $annotations := .Values.podAnnotations }}
{{- if eq $name "queuectl" }}
{{- /* `kubectl exec` and `kubectl logs` then do not print that they chose a container. */}}
{{- $annotations = mergeOverwrite (dict "kubectl.kubernetes.io/default-container" $name) $annotations }}
{{- end }}
{{- if and .Values.jobKinds (eq $name "queuectl") }}
{{- /* Changed kinds restart the controller. */}}
{{- $annotations = merge (dict "queuectl.dev/job-kinds" (toJson .Values.jobKinds | sha256sum)) $annotations }}
{{- else if eq $name "queuectl-webhook" }}
{{- /* Changed policies restart the webhook. */}}
{{- $annotations = merge (dict "queuectl.dev/policies" (include "queuectl.mutation" . | sha256sum)) $annotations }}
{{- end }}
{{- with $annotations }}
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

{{/* What changes new jobs: "policy" or "webhook". A rendering without a cluster does not know the kinds of the cluster, so it has the
webhook, which works on each version. */}}
{{- define "queuectl.mutatedBy" -}}
{{- if has .Values.mutation (list "policy" "webhook") }}{{ .Values.mutation }}
{{- else }}{{ .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" | ternary "policy" "webhook" }}
{{- end }}
{{- end }}

{{/* The MutatingAdmissionPolicies that the chart has with `mutation: policy`, and their bindings, as YAML with the keys policies and bindings. */}}
{{- define "queuectl.mutation" -}}
{{- $policies := list }}{{ $bindings := list }}
{{- $root := dict "Values" (merge (dict "mutation" "policy") .Values) "Release" .Release "Files" .Files }}
{{- range list "mutating-policies" "default-queue" "kueue-keys" }}
{{- range include (printf "%s/%s.yaml" $.Template.BasePath .) $root | splitList "\n---\n" }}
{{- $document := fromYaml . }}
{{- if eq (get $document "kind") "MutatingAdmissionPolicy" }}
{{- $policies = append $policies $document }}
{{- else if eq (get $document "kind") "MutatingAdmissionPolicyBinding" }}
{{- $bindings = append $bindings $document }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "policies" $policies "bindings" $bindings | toYaml }}
{{- end }}

{{/* The plurals of the kinds of configuration, as YAML with the keys own (queuectl.dev) and kueue. */}}
{{- define "queuectl.configuration" -}}
{{- $own := list "resourceflavors" "topologies" "cohorts" "clusterqueues" "localqueues" "workloadpriorityclasses" }}
{{- dict "own" $own "kueue" (concat $own (list "admissionchecks" "provisioningrequestconfigs")) | toYaml }}
{{- end }}

{{/* The described job kinds, as YAML with the key kinds: the built-in ones, then those of jobKinds. */}}
{{- define "queuectl.kinds" -}}
{{- $kinds := (.Files.Get "kinds.yaml" | fromYaml).kinds }}
{{- $names := list "Job" }}{{ $plurals := list "jobs" "pods" "leaderworkersets" "namespaces" "deletions" "components" "preemption" "provisioning" "resizes" "submitters" }}
{{- range concat $kinds (.Files.Get "kinds.yaml" | fromYaml).makers }}{{ $names = append $names .kind }}{{ $plurals = append $plurals .plural }}{{ end }}
{{- range $i, $one := .Values.jobKinds }}
{{- if has .kind $names }}{{ fail (printf "jobKinds[%d] (%s): kind: %s is the name of another job kind" $i .kind .kind) }}{{ end }}
{{- if has .plural $plurals }}{{ fail (printf "jobKinds[%d] (%s): plural: %s is the name of another kind" $i .kind .plural) }}{{ end }}
{{- $names = append $names .kind }}{{ $plurals = append $plurals .plural }}
{{- end }}
{{- dict "kinds" (concat $kinds (.Values.jobKinds | default list)) | toYaml }}
{{- end }}

{{/* The paths in the entry of a single podset that are not a part of it: of the suspend field and of other podsets. Arguments: the kind, and
the place. */}}
{{- define "queuectl.inside" -}}
{{- $kind := first . }}{{ $place := last . }}{{ $prefix := printf "%s." $place.path }}{{ $found := list -}}
{{- if $place.name }}
{{- if hasPrefix $prefix $kind.suspend }}{{ $found = append $found (trimPrefix $prefix $kind.suspend) }}{{ end }}
{{- range $kind.podsets }}
{{- if hasPrefix $prefix .path }}{{ $found = append $found (trimPrefix $prefix .path) }}
{{- else if and (eq .path $place.path) (ne .name $place.name) }}{{ $found = append $found (include "queuectl.template" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- join " " $found }}
{{- end }}

{{/* The paths in an entry that decide the number of its pods. Argument: the place. */}}
{{- define "queuectl.counts" -}}
{{- range ternary .count (list (list "replicas")) (hasKey . "count") }}{{ range . }}{{ . }} {{ end }}{{ end }}
{{- end }}

{{/* An optional value of CEL: a field that can be absent. Arguments: the expression of an object or of an optional, and the path below it. */}}
{{- define "queuectl.field" -}}
{{ index . 0 }}{{ range splitList "." (index . 1) }}{{ with . }}.?{{ . }}{{ end }}{{ end }}
{{- end }}

{{/* The path of the pod template in an entry of a place; empty if the entry is the template. Argument: the place. */}}
{{- define "queuectl.template" -}}
{{ hasKey . "template" | ternary .template "template" }}
{{- end }}

{{/* Whether the controller of another kind creates objects of a kind, as the text "true" or "false". Arguments: the root, and the kind. */}}
{{- define "queuectl.isChild" -}}
{{- $found := false }}{{ $kind := last . -}}
{{- range (include "queuectl.kinds" (first .) | fromYaml).kinds }}
{{- range .children }}{{ if and (eq .group $kind.group) (eq .plural $kind.plural) }}{{ $found = true }}{{ end }}{{ end -}}
{{- end -}}
{{ $found }}
{{- end }}

{{/* The kinds of which an object outside a queue can belong to a queued job, or can create pods that seem to, as YAML with the key kinds: all job
kinds, then the others from which controllers create objects that admission does not check, with `always`. */}}
{{- define "queuectl.unqueued" -}}
{{- $kinds := concat (include "queuectl.batchJob" . | fromYaml | list) (include "queuectl.kinds" . | fromYaml).kinds }}
{{- range (.Files.Get "kinds.yaml" | fromYaml).makers }}
{{- if or .podsets .jobSet }}{{ $kinds = append $kinds (merge (dict "always" true) .) }}{{ end }}
{{- end }}
{{- dict "kinds" $kinds | toYaml }}
{{- end }}

{{/* Whether an object has the gate or a label of queuectl for its pods. Arguments: the kind, and the expression of the object. */}}
{{- define "queuectl.markedObject" -}}
{{- $kind := first . }}{{ $object := printf "dyn(%s)" (last .) }}{{ $marks := list -}}
{{- with $kind.jobSet }}{{ $marks = append $marks (include "queuectl.markedJobSet" (include "queuectl.field" (list $object .))) }}{{ end -}}
{{- with $kind.patches }}
{{- $marks = append $marks (printf "%s.exists(one, %s)" (include "queuectl.patches" (list . $object)) (include "queuectl.markedJobSet" (include "queuectl.changes" (list . "one")))) }}
{{- end -}}
{{- range $place := $kind.podsets }}
{{- if .key }}
{{- $marks = append $marks (printf "%s.orValue([]).exists(each, %s)" (include "queuectl.field" (list $object .path)) (include "queuectl.markedEntry" (list . "optional.of(each)"))) }}
{{- else }}
{{- $keys := include "queuectl.keys" (list . $object) }}
{{- if .types }}{{ $keys = printf "%s.orValue({})" (include "queuectl.field" (list $object .path)) }}{{ end }}
{{- $marks = append $marks (printf "%s.exists(type, %s)" $keys (include "queuectl.markedEntry" (list . (include "queuectl.entry" (list . $object true))))) }}
{{- end }}
{{- end -}}
{{- if eq $kind.group "sparkoperator.k8s.io" }}
{{- /* Spark gives its pods labels of its properties, too. */}}
{{- $properties := printf "%s.sparkConf" (first $kind.podsets).path | replace (printf ".%s." (splitList "." (first $kind.podsets).path | last)) "." }}
{{- $marks = append $marks (printf "%s.orValue({}).exists(key, key.matches('^spark[.]kubernetes[.](driver|executor)[.]label[.]queuectl[.]dev/'))" (include "queuectl.field" (list $object $properties))) }}
{{- end -}}
{{- if not $marks }}
{{- $marks = list (printf `%s.spec.components.exists(one, one.?podSetInfos.orValue([]).exists(info,
  info.?schedulingGates.orValue([]).exists(gate, gate.name == 'queuectl.dev/placement')
  || [%s].exists(name, info.?labels[?('queuectl.dev/' + name)].hasValue())))` $object (include "queuectl.ownLabels" .)) }}
{{- end -}}
{{ join "\n|| " $marks }}
{{- end }}

{{/* The first entry of the first place of an object, as an optional. Arguments: the kind, and the expression of the object. */}}
{{- define "queuectl.firstEntry" -}}
{{- $place := first (first .).podsets }}{{ $object := last . -}}
{{- $entry := include "queuectl.field" (list $object $place.path) -}}
{{- if $place.key }}{{ $entry = printf "%s.orValue([])[?0]" $entry }}{{ end -}}
{{- if $place.types }}{{ $entry = printf "%s.%s.map(type, %s.%s[type])[?0]" $object $place.path $object $place.path }}{{ end -}}
{{ $entry }}
{{- end }}

{{/* Its pod template, as an optional. Arguments as above. */}}
{{- define "queuectl.firstTemplate" -}}
{{ include "queuectl.field" (list (include "queuectl.firstEntry" .) (include "queuectl.template" (first (first .).podsets))) }}
{{- end }}

{{/* The labels of its pods, as an optional. Arguments as above. */}}
{{- define "queuectl.firstLabels" -}}
{{- with (first (first .).podsets).labels }}{{ include "queuectl.field" (list (include "queuectl.firstEntry" $) .path) }}
{{- else }}{{ include "queuectl.firstTemplate" . }}.?metadata.?labels
{{- end }}
{{- end }}

{{/* Whether a suspended job has no pods: the controller of its kind confirms that, or it has never started. A suspension that its controller does
not know yet stops nothing. The pod templates of a Job do not tell whether it has started, because it can be an array. Arguments: the kind,
and the expression of the object. */}}
{{- define "queuectl.isStopped" -}}
{{- $kind := first . }}{{ $object := printf "dyn(%s)" (last .) -}}
{{- $types := $kind.conditions | default dict }}{{ $type := hasKey $types "suspended" | ternary $types.suspended "Suspended" -}}
{{- $holds := ternary (printf "%s.?status.?conditions.orValue([]).exists(one, one.type == '%s' && one.status == 'True')" $object $type) "true" (ne $type "") -}}
{{- with $kind.phase }}
{{- $values := printf "string(%s.orValue('')) in ['%s']" (include "queuectl.field" (list $object .path)) (join "', '" (.suspended | default list)) }}
{{- $holds = ternary $values "true" (not (empty .suspended)) }}
{{- end -}}
{{- if eq $kind.kind "Job" }}{{ $holds = printf "%s && %s.?status.?active.orValue(0) == 0" $holds $object }}
{{- else if $kind.podsets }}
{{- $holds = printf "(%s\n  || %s[?'queuectl.dev/attempt'].orValue('') == '0')" $holds (include "queuectl.firstLabels" (list $kind $object)) }}
{{- end -}}
{{ include "queuectl.field" (list $object $kind.suspend) }}.orValue(false)
&& {{ $holds }}
{{- end }}

{{/* Whether a pod template has the gate of queuectl. Argument: an optional with the template. */}}
{{- define "queuectl.gated" -}}
{{ . }}.?spec.?schedulingGates.orValue([])
  .exists(gate, gate.name == 'queuectl.dev/placement')
{{- end }}

{{/* The keys of the podsets in one place of an object, as a list of CEL. Arguments: the place, and the expression of the object. */}}
{{- define "queuectl.keys" -}}
{{- $place := index . 0 }}{{ $object := index . 1 -}}
{{- if and $place.name $place.optional }}({{ include "queuectl.field" (list $object $place.path) }}.hasValue() ? ['{{ $place.name }}'] : [])
{{- else if $place.name }}['{{ $place.name }}']
{{- else if $place.key }}{{ include "queuectl.field" (list $object $place.path) }}.orValue([]).map(one, one.{{ $place.key }})
{{- else }}{{ $object }}.{{ $place.path }}.map(type, type)
{{- end }}
{{- end }}

{{/* An optional with the entry of the podset `type`. Arguments: the place, the expression of the object, and whether the object can be null. */}}
{{- define "queuectl.entry" -}}
{{- $place := index . 0 }}{{ $object := index . 1 -}}
{{- if $place.name }}{{ include "queuectl.field" (list $object $place.path) }}
{{- else if $place.key }}{{ include "queuectl.field" (list $object $place.path) }}.orValue([]).filter(one, one.{{ $place.key }} == type)[?0]
{{- else if index . 2 }}{{ include "queuectl.field" (list $object $place.path) }}[?type]
{{- else }}{{ $object }}.{{ $place.path }}[?type]
{{- end }}
{{- end }}

{{/* The JSON pointer to the entry `one` of a list with the names `names`, or to that of the podset `type`, as an expression of CEL. Argument: the
place. */}}
{{- define "queuectl.pointer" -}}
'/{{ .path | replace "." "/" }}'
{{- if .key }} + '/' + string(names.indexOf(one.{{ .key }}))
{{- else if not .name }} + '/' + type.replace('~', '~0').replace('/', '~1')
{{- end }}
{{- end }}

{{/* Whether a rule holds for each podset. Arguments: the kind, the expression of the object, and the rule, in which ENTRY is the entry of the
podset, and OLD the entry with the same name in the old object, both optional. NEW_TEMPLATE and OLD_TEMPLATE
are their pod templates, NEW_ADDED and OLD_ADDED the labels that the controller adds. The API server limits the cost of an expression, and a list can have 128 entries: the old entry is found once. */}}
{{- define "queuectl.eachPodSet" -}}
{{- /* The schema of a kind need not have the fields of a template, and the API server checks the types of policies. */ -}}
{{- $object := printf "dyn(%s)" (index . 1) }}{{ $rule := index . 2 }}{{ $oldObject := "dyn(oldObject)" }}
{{- range $i, $place := (index . 0).podsets }}
{{- $entry := include "queuectl.entry" (list $place $object false) }}
{{- $old := include "queuectl.entry" (list $place $oldObject true) }}
{{- $template := include "queuectl.template" $place }}
{{- $text := $rule }}
{{- with $place.labels }}
{{- range $side, $of := dict "NEW_TEMPLATE" "ENTRY" "OLD_TEMPLATE" "OLD" }}
{{- $text = $text | replace (print $side ".?metadata.?labels") (printf "%s.?%s" $of $place.labels.path) | replace (print $side ".?spec.?priorityClassName") (printf "%s.?%s" $of $place.labels.priorityClass) }}
{{- end }}
{{- end }}
{{- $text = $text | replace "NEW_TEMPLATE" (include "queuectl.field" (list "ENTRY" $template)) | replace "OLD_TEMPLATE" (include "queuectl.field" (list "OLD" $template)) }}
{{- with $place.addedLabels }}
{{- $text = $text | replace "NEW_ADDED" (include "queuectl.field" (list "ENTRY" .)) | replace "OLD_ADDED" (include "queuectl.field" (list "OLD" .)) }}
{{- end }}
{{- if $i }} && {{ end }}
{{- if not $place.key }}{{ include "queuectl.keys" (list $place $object) }}.all(type,
{{ $text | replace "ENTRY" $entry | replace "OLD" $old | indent 2 }})
{{- else if contains "OLD" $text }}{{ include "queuectl.field" (list $object $place.path) }}.orValue([]).all(each, [optional.of(each)].all(entry,
  [{{ include "queuectl.field" (list $oldObject $place.path) }}.orValue([]).filter(one, one.{{ $place.key }} == each.{{ $place.key }})[?0]].all(old,
{{ $text | replace "ENTRY" "entry" | replace "OLD" "old" | indent 4 }})))
{{- else }}{{ include "queuectl.field" (list $object $place.path) }}.orValue([]).all(each, [optional.of(each)].all(entry,
{{ $text | replace "ENTRY" "entry" | indent 2 }}))
{{- end }}
{{- end }}
{{- end }}

{{/* Whether the labels that the controller of an object adds to its pods have the same labels of queuectl as before: a new object has none. Empty
for kinds without such labels. Argument: the kind. */}}
{{- define "queuectl.addsNoMark" -}}
{{- $places := list }}
{{- range .podsets }}{{ if .addedLabels }}{{ $places = append $places . }}{{ end }}{{ end -}}
{{- if $places }}
{{- $rule := printf "[%s].all(name,\n  NEW_ADDED[?('queuectl.dev/' + name)] == OLD_ADDED[?('queuectl.dev/' + name)])" (include "queuectl.ownLabels" .) -}}
{{ include "queuectl.eachPodSet" (list (dict "podsets" $places) "object" $rule) }}
{{- end }}
{{- end }}

{{/* Whether two maps, as optionals, have the same values, except under some keys. Arguments: the expressions, and the keys. */}}
{{- define "queuectl.same" -}}
{{- $keys := printf "['%s']" (join "', '" (index . 2)) -}}
[[{{ index . 0 }}.orValue({}), {{ index . 1 }}.orValue({})]].all(side,
  side[0].all(key, key in {{ $keys }} || side[0][key] == side[1][?key].orValue(null))
  && side[1].all(key, key in {{ $keys }} || key in side[0]))
{{- end }}

{{/* Whether one map, as an optional, is another one with more keys of other owners. Arguments: the expressions of the new and the old one. */}}
{{- define "queuectl.adds" -}}
{{ index . 1 }}.orValue({}).all(key, {{ index . 0 }}[?key] == {{ index . 1 }}[?key])
&& {{ index . 0 }}.orValue({}).all(key, key in {{ index . 1 }}.orValue({})
  || !key.startsWith('queuectl.dev/') && !key.startsWith('kueue.x-k8s.io/'))
{{- end }}

{{/* Whether two objects, as optionals, are the same, except for some fields. Arguments: the expressions, and the paths of the fields. */}}
{{- define "queuectl.sameBut" -}}
{{- $new := index . 0 }}{{ $old := index . 1 }}{{ $below := dict "" list }}{{ $prefixes := list -}}
{{- range $path := index . 2 }}
{{- $prefix := "" }}
{{- range $name := splitList "." $path }}
{{- if not (has $prefix $prefixes) }}{{ $prefixes = append $prefixes $prefix }}{{ end }}
{{- $_ := set $below $prefix (append (get $below $prefix | default list) $name | uniq) }}
{{- $prefix = printf "%s.?%s" $prefix $name }}
{{- end }}
{{- end }}
{{- range $i, $prefix := $prefixes }}
{{- if $i }}
&& {{ end }}{{ include "queuectl.same" (list (print $new $prefix) (print $old $prefix) (get $below $prefix)) }}
{{- end }}
{{- end }}

{{/* Whether a pod belongs to a job that queuectl runs. Arguments: the root, and the expression of the pod. */}}
{{- define "queuectl.ofJob" -}}
{{- $kinds := list "Job" -}}
{{- range (include "queuectl.kinds" (first .) | fromYaml).kinds }}{{ $kinds = append $kinds .kind }}{{ end -}}
{{ last . }}.metadata.?ownerReferences.orValue([]).exists(owner,
  owner.?controller.orValue(false) && (owner.kind in ['{{ join "', '" $kinds }}']
    || owner.kind == 'Pod' && {{ include "queuectl.isLabeled" . }}))
{{- end }}

{{/* Whether a pod is a workload, or a part of one: it has a queue label, and admission took it in. Argument: the expression of the pod. */}}
{{- define "queuectl.isWorkload" -}}
{{ . }}.metadata.?annotations[?'queuectl.dev/submitted-by'].hasValue()
  && ['queuectl.dev/queue-name', 'kueue.x-k8s.io/queue-name'].exists(key, {{ . }}.metadata.?labels[?key].hasValue())
{{- end }}

{{/* Whether a pod is released for an index of an array or of an elastic job, which is a workload of its own. Argument: the expression of the pod. */}}
{{- define "queuectl.isIndex" -}}
{{ . }}.metadata.?labels[?'queuectl.dev/workload'].orValue('').matches('[.][0-9]{3}$')
{{- end }}

{{/* Whether the keys of a pod that is a workload, or a part of one, differ, or other pods get the annotation of admission. Arguments: two
expressions of the pod. */}}
{{- define "queuectl.podKeys" -}}
{{- $new := first . }}{{ $old := last . -}}
{{ $new }}.metadata.?annotations[?'queuectl.dev/submitted-by'] != {{ $old }}.metadata.?annotations[?'queuectl.dev/submitted-by']
|| {{ $old }}.metadata.?annotations[?'queuectl.dev/submitted-by'].hasValue()
  && ['queuectl.dev/', 'kueue.x-k8s.io/'].exists(prefix,
    ['queue-name', 'pod-group-name'].exists(name,
      {{ $new }}.metadata.?labels[?(prefix + name)] != {{ $old }}.metadata.?labels[?(prefix + name)])
    || ['name', 'group-index'].exists(name, {{ $new }}.metadata.?labels[?('leaderworkerset.sigs.k8s.io/' + name)]
      != {{ $old }}.metadata.?labels[?('leaderworkerset.sigs.k8s.io/' + name)])
    || ['pod-group-total-count', 'pod-group-fast-admission', 'retriable-in-group'].exists(name,
      {{ $new }}.metadata.?annotations[?(prefix + name)] != {{ $old }}.metadata.?annotations[?(prefix + name)]))
{{- end }}

{{/* Variables of a policy that copies the queue of an object to its pod template. */}}
{{- define "queuectl.copied" -}}
# The labels that count, under the keys that the object has.
- name: copied
  expression: >-
    ['queuectl.dev/queue-name', 'kueue.x-k8s.io/queue-name', 'queuectl.dev/priority-class', 'kueue.x-k8s.io/priority-class']
    .filter(key, object.metadata.?labels[?key].hasValue())
{{- end }}

{{/* A patch that adds an empty map where the object has none. Arguments: the map as an optional, and its path. */}}
{{- define "queuectl.emptyMap" -}}
({{ index . 0 }}.hasValue() ? [] : [JSONPatch{op: 'add', path: '{{ index . 1 }}', value: {}}])
{{- end }}

{{/* Patches that copy these labels. Arguments: the expression of a pod template, and its JSON pointer. */}}
{{- define "queuectl.copyLabels" -}}
{{- $template := first . }}{{ $at := last . -}}
{{ include "queuectl.emptyMap" (list (print $template ".?metadata") (print $at "/metadata")) }}
+ {{ include "queuectl.emptyMap" (list (print $template ".?metadata.?labels") (print $at "/metadata/labels")) }}
+ variables.copied.map(key, JSONPatch{op: 'add', path: '{{ $at }}/metadata/labels/' + jsonpatch.escapeKey(key),
  value: object.metadata.labels[key]})
{{- end }}

{{/* Patches that remove the labels of a start from the templates. Argument: the kind. */}}
{{- define "queuectl.withoutLaterLabels" -}}
{{- range $i, $name := splitList ", " (include "queuectl.laterLabels" .) }}
{{- $name = trimAll "'" $name }}
{{ if $i }}+ {{ end }}variables.templates.filter(one, one.template.?metadata.?labels[?'queuectl.dev/{{ $name }}'].hasValue())
.map(one, JSONPatch{op: 'remove', path: one.at + '/metadata/labels/' + jsonpatch.escapeKey('queuectl.dev/{{ $name }}')})
{{- end }}
{{- end }}

{{/* The kinds from whose objects controllers create pods and jobs that count for the user of the object, as YAML with the key makers. */}}
{{- define "queuectl.makers" -}}
{{- $makers := list }}
{{- range (.Files.Get "kinds.yaml" | fromYaml).makers }}{{ if .created }}{{ $makers = append $makers . }}{{ end }}{{ end }}
{{- dict "makers" $makers | toYaml }}
{{- end }}

{{/* The rules of a policy for the creation and the update of objects of these kinds. Argument: the list of the kinds. */}}
{{- define "queuectl.makerRules" -}}
{{- range . }}
- apiGroups: [{{ .group | quote }}]
  apiVersions: [{{ .version }}]
  resources: [{{ .plural }}]
  operations: [CREATE, UPDATE]
{{- end }}
{{- end }}

{{/* The metadata that a controller copies from an object of these kinds, as an optional. Arguments: the list of the kinds, and the expression of
the object. */}}
{{- define "queuectl.makerMetadata" -}}
{{- $object := printf "optional.of(dyn(%s))" (last .) -}}
(
{{- range $path, $plurals := include "queuectl.makerPaths" (first .) | fromYaml }}request.resource.resource in ['{{ join "', '" $plurals }}']
  ? {{ include "queuectl.field" (list $object $path) }} :
  {{ end }}optional.none())
{{- end }}

{{/* The resources of these kinds by the paths of these metadata, as YAML. Argument: the list of the kinds. */}}
{{- define "queuectl.makerPaths" -}}
{{- $paths := dict }}
{{- range . }}
{{- $path := .created.metadata | default "metadata" }}
{{- $_ := set $paths $path (append (get $paths $path | default list) .plural) }}
{{- end }}
{{- toYaml $paths }}
{{- end }}

{{/* The accounts of the controllers that create objects of a resource from objects of users, as the elements of a list of CEL. The controllers of
kube-controller-manager can have one account, the last one. Arguments: the root, and the plural. */}}
{{- define "queuectl.makerAccounts" -}}
{{- $root := first . }}{{ $plural := last . }}{{ $accounts := list -}}
{{- range (include "queuectl.makers" (first .) | fromYaml).makers }}
{{- if eq .created.plural $plural }}
{{- if .created.operator }}
{{- $one := get $root.Values .created.operator | default dict }}
{{- if $one.serviceAccount }}{{ $accounts = append $accounts (printf "system:serviceaccount:%s:%s" $one.namespace $one.serviceAccount) }}{{ end }}
{{- else }}
{{- $accounts = concat $accounts (list (printf "system:serviceaccount:kube-system:%s" .created.controller) "system:kube-controller-manager") }}
{{- end }}
{{- end }}
{{- end -}}
{{- with uniq $accounts }}'{{ join "', '" . }}'{{ end }}
{{- end }}

{{/* Whether a request is by the controller of an object for another object of the list of makers: a ReplicaSet of a Deployment. Argument: the root. */}}
{{- define "queuectl.fromMaker" -}}
request.resource.resource == 'replicasets' && request.userInfo.username in [{{ include "queuectl.makerAccounts" (list . "replicasets") }}]
{{- end }}

{{/* The name of the user for whom a new object counts. A controller that creates it has copied the name, or it creates objects for users who are not
known: they count for all ServiceAccounts of the namespace. Arguments: the root, and the plural of the object. */}}
{{- define "queuectl.submitter" -}}
{{- $accounts := include "queuectl.makerAccounts" . }}{{ $kinds := list -}}
{{- range (include "queuectl.makers" (first .) | fromYaml).makers }}{{ if eq .created.plural (last $) }}{{ $kinds = append $kinds .kind }}{{ end }}{{ end -}}
{{- $name := "object.metadata.?annotations[?'queuectl.dev/submitted-by'].orValue('')" -}}
({{ with $accounts }}request.userInfo.username in [{{ . }}]
  && object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false) && owner.kind in ['{{ join "', '" $kinds }}'])
  && {{ $name }} != ''
  ? {{ $name }} :
  {{ end }}request.userInfo.username in [{{ with $accounts }}{{ . }}, {{ end }}{{ include "queuectl.operators" (first .) }}]
  ? 'system:serviceaccounts:' + request.namespace : request.userInfo.username)
{{- end }}

{{/* The labels of an object without a queue, as a label selector. Argument: the root. */}}
{{- define "queuectl.withoutQueue" -}}
matchExpressions:
- {key: queuectl.dev/queue-name, operator: DoesNotExist}
{{- if or .Values.kueueKeys.enabled .Values.kueueKeys.kueueRuns }}
- {key: kueue.x-k8s.io/queue-name, operator: DoesNotExist}
{{- end }}
{{- end }}

{{/* A policy that writes queuectl's label to new jobs. Arguments: the root, the name, the condition, and the expression of the queue. */}}
{{- define "queuectl.queueLabelPolicy" }}
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: {{ index . 1 }}
  labels: {app.kubernetes.io/name: queuectl}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - apiGroups: [batch]
      apiVersions: [v1]
      resources: [jobs]
      operations: [CREATE]
    {{- range (include "queuectl.kinds" (first .) | fromYaml).kinds }}
    - apiGroups: [{{ .group }}]
      apiVersions: [{{ .version }}]
      resources: [{{ .plural }}]
      operations: [CREATE]
    {{- end }}
  # Such an object counts in the queue of its job.
  matchConditions:
  - name: not-for-a-queued-job
    expression: >-
      {{- $root := first . }}
      {{- range $i, $kind := prepend (include "queuectl.kinds" $root | fromYaml).kinds (include "queuectl.batchJob" $root | fromYaml) }}
      {{- if eq (include "queuectl.isChild" (list $root .)) "true" }}
      {{ if $i }}&& {{ end }}!(request.resource.group == '{{ .group }}' && request.resource.resource == '{{ .plural }}'
        && ({{ include "queuectl.forQueuedJob" (list $root .) | indent 8 | trim }}))
      {{- end }}
      {{- end }}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        !({{ index . 2 }}) ? [] : (
          {{ include "queuectl.emptyMap" (list "object.metadata.?labels" "/metadata/labels") }}
          + [JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('queuectl.dev/queue-name'), value: {{ index . 3 }}}])
{{- end }}

{{/* The namespaces whose pods do not preempt pods of gangs, as a label selector. Argument: the root. */}}
{{- define "queuectl.mayNotPreempt" -}}
matchExpressions:
- {key: queuectl.dev/allow-preemption, operator: NotIn, values: ["true"]}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{- append .Values.preemption.namespaces .Release.Namespace | uniq | toYaml | nindent 2 }}
{{- end }}

{{/* Whether each admission gate that a request writes has a name. */}}
{{- define "queuectl.gateNames" -}}
['queuectl.dev/admission-gated-by', 'kueue.x-k8s.io/admission-gated-by'].all(key,
  oldObject != null && object.metadata.?annotations[?key] == oldObject.metadata.?annotations[?key]
  || object.metadata.?annotations[?key].orValue('').size() < 8000
    && object.metadata.?annotations[?key].orValue('').split(',').all(name, name.trim() == ''
      || name.trim().size() <= 63 && name.trim().matches(
        "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/._~%!$&'()*+;=:@-]+|[A-Za-z0-9._~%!$&'()*+;=:@-]+)$")))
{{- end }}

{{- define "queuectl.gateNamesMessage" -}}
the annotation admission-gated-by is a list of names with commas between them, such as example.com/data: a name has at most 63 characters
and no spaces
{{- end }}

{{/* "true" if queuectl creates the certificate of the REST API, else empty. */}}
{{- define "queuectl.ownCertificate" -}}
{{- if not (or .Values.tls.secretName .Values.tls.issuerRef) }}true{{ end }}
{{- end }}

{{/* The names of the REST API in its certificate, separated by commas: the Service, a forwarded port, and the names of the user. */}}
{{- define "queuectl.tlsHosts" -}}
{{- $service := printf "queuectl.%s.svc" .Release.Namespace -}}
{{ join "," (concat (list $service (printf "%s.cluster.local" $service) "localhost" "127.0.0.1") .Values.tls.hosts) }}
{{- end }}

{{/* The Secret with the URLs of the database. */}}
{{- define "queuectl.databaseSecret" -}}
{{ .Values.database.secretName | default "queuectl-bundled-database" }}
{{- end }}

{{/* The claim of the server that the chart installs, by which queuectl recognizes data that was not moved. */}}
{{- define "queuectl.bundledClaim" -}}
data-queuectl-database-0
{{- end }}

{{/* The rule that users do not change the annotation from which queuectl holds a workload again after the loss of the database. */}}
{{- define "queuectl.heldStatus" -}}
- expression: >-
    oldObject == null
    || !oldObject.metadata.?annotations[?'queuectl.dev/status'].orValue('')
      .matches('^(Deactivated: |(Held|Evicting): (Held|Deactivated))')
    || object.metadata.?annotations[?'queuectl.dev/status'] == oldObject.metadata.?annotations[?'queuectl.dev/status']
  message: >-
    only queuectl writes the annotation queuectl.dev/status of a workload that is held or deactivated: with it, the workload is
    held again after the loss of the database
{{- end }}

{{/* Whether an object in a queue keeps the label of queuectl, by which the bindings of the policies select it: Kueue's label can name the
same queue. */}}
{{- define "queuectl.hasKeptLabel" -}}
oldObject == null || object.metadata.?labels[?'queuectl.dev/queue-name'].hasValue() || !oldObject.metadata.?labels[?'queuectl.dev/queue-name'].hasValue()
{{- end }}

{{/* How a deletion propagates. Only for Jobs of batch/v1, orphan is the default of the API server. The finalizer orphan, which users can add,
makes it the default of an object. */}}
{{- define "queuectl.propagation" -}}
request.?options.?orphanDependents.orValue(false) ? 'Orphan'
: request.?options.?propagationPolicy.orValue(request.resource.resource == 'jobs'
  || oldObject.metadata.?finalizers.orValue([]).exists(name, name == 'orphan') ? 'Orphan' : 'Background')
{{- end }}

{{/* The rule that it keeps the label. */}}
{{- define "queuectl.keepsLabel" -}}
- expression: >-
    {{ include "queuectl.hasKeptLabel" . }}
  message: >-
    the label queuectl.dev/queue-name of a job in a queue cannot be removed: delete the job, and create it without the label
{{- end }}
