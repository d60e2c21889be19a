# queuectl as one image: the controller, its REST API and the command line. No database inside: give QUEUECTL_DATABASE_URL.
#
#   docker build -t queuectl:0.1.0 .
#   docker run --rm queuectl:0.1.0 --help

FROM python:3.13-slim AS build
# The virtual environment is made where it will stand: its scripts name its path.
ENV UV_PROJECT_ENVIRONMENT=/opt/queuectl \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
# Dependencies first: this layer lasts until the lock changes.
COPY pyproject.toml uv.lock ./
RUN uv sync --frozen --no-dev --extra server --no-install-project
COPY README.md LICENSE ./
COPY queuectl queuectl
COPY migrations migrations
COPY deploy deploy
RUN uv sync --frozen --no-dev --extra server --no-editable

FROM python:3.13-slim
COPY --from=build /opt/queuectl /opt/queuectl
# Nothing need be writable but /tmp, for a library that wants a temporary file.
ENV PATH=/opt/queuectl/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
EXPOSE 8080 8443
ENTRYPOINT ["queuectl"]
