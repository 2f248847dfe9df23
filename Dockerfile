# One image for `serve`, `broker`, `pub` and `sub`: nsq-gateway is its entry point.
#
#   docker build --tag nsq-gateway .
#   docker run --rm --read-only --publish 8080:8080 nsq-gateway serve \
#       --nsqd-tcp-address nsqd-1:4150 --require-auth
#   docker run --rm --read-only --no-healthcheck nsq-gateway broker --tcp-address 0.0.0.0:4150
#
# A second one for `pipeline`, with Spark and Java, which is several times as big:
#
#   docker build --target pipeline --tag nsq-gateway-pipeline .
#
# docs/docker.md has more.
#
# The digest is what the tag stood for when this was written. To renew it, in every stage:
#   docker buildx imagetools inspect python:3.13-slim --format '{{.Manifest.Digest}}'

# ---- Build: a virtual environment with what requirements/image.txt pins, and the package ---------

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
WORKDIR /build

# pip and setuptools stay outside of the environment that is handed on.
RUN ["python", "-m", "venv", "--without-pip", "/opt/nsq-gateway"]
COPY requirements/image.txt requirements/
# Wheels only, each with its hash: nothing is compiled, and nothing of a package runs here.
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--require-hashes", "--only-binary", ":all:", "--requirement", "requirements/image.txt"]

# The package carries both contracts by links.
COPY pyproject.toml README.md LICENSE openapi.yaml asyncapi.yaml ./
COPY gateway gateway
COPY pyspark_nsq pyspark_nsq
# The build backend is one of the packages above.
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--no-index", "--no-deps", "--no-build-isolation", "."]
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "uninstall", "--yes", "setuptools"]
# Compiled here, for the file system is read-only later; the source's time need not be looked at.
RUN ["/opt/nsq-gateway/bin/python", "-m", "compileall", "-q", "-j", "0", \
     "--invalidation-mode", "unchecked-hash", "/opt/nsq-gateway/lib"]

# ---- Build of the pipeline: Spark in the same environment -----------------------------------

FROM build AS build-pipeline

COPY requirements/image-spark.txt requirements/
# What builds comes back, for Spark is no wheel: it is the one package that is made here, without
# anything that is not pinned.
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--require-hashes", "--only-binary", ":all:", "--requirement", "requirements/image.txt"]
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--require-hashes", "--only-binary", ":all:", "--no-binary", "pyspark", \
     "--no-build-isolation", "--requirement", "requirements/image-spark.txt"]
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "uninstall", "--yes", "setuptools"]
RUN ["/opt/nsq-gateway/bin/python", "-m", "compileall", "-q", "-j", "0", \
     "--invalidation-mode", "unchecked-hash", "/opt/nsq-gateway/lib"]

# ---- What runs the pipeline: driver, executors, and jobs on one machine -------------------------

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS pipeline

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nsq-gateway-pipeline" \
      org.opencontainers.image.description="Data pipeline between NSQ and Spark: archive, metrics, replay." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Java as Debian keeps it now: a version that is pinned here is gone from Debian with its next repair.
# tini is the first process, for Spark leaves children of children behind.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*
RUN ["python", "-m", "pip", "uninstall", "--yes", "--root-user-action", "ignore", "pip"]
# Hadoop asks the system for the name of its user. Spark mounts a driver's options at /opt/spark/conf.
RUN ["useradd", "--uid", "10001", "--user-group", "--home-dir", "/tmp", "--no-create-home", \
     "--shell", "/usr/sbin/nologin", "nsq"]
RUN ["mkdir", "-p", "/opt/spark/conf", "/opt/spark/work-dir"]
# One path for the main file of spark-submit, whatever the version of Python.
RUN ["ln", "-s", "/opt/nsq-gateway/lib/python3.13/site-packages/pyspark_nsq", "/opt/pyspark_nsq"]

COPY --from=build-pipeline /opt/nsq-gateway /opt/nsq-gateway
COPY tools/image/entrypoint.sh /opt/nsq-gateway/entrypoint.sh

ENV PATH=/opt/nsq-gateway/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    JAVA_HOME=/usr/lib/jvm/default-java \
    SPARK_HOME=/opt/nsq-gateway/lib/python3.13/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/nsq-gateway/bin/python

USER 10001:10001
# The only place that has to be writable: --tmpfs /tmp, or an emptyDir.
WORKDIR /tmp
STOPSIGNAL SIGTERM
# A job is asked at its management_listen, which is off unless it is named: so nothing is asked here.
HEALTHCHECK NONE
ENTRYPOINT ["tini", "--", "bash", "/opt/nsq-gateway/entrypoint.sh"]
CMD ["pipeline", "--help"]

# ---- What runs -------------------------------------------------------------------------------

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nsq-gateway" \
      org.opencontainers.image.description="HTTP and WebSockets in front of NSQ, with an embedded broker." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The image of Python brings pip; nothing here needs it any more.
RUN ["python", "-m", "pip", "uninstall", "--yes", "--root-user-action", "ignore", "pip"]

COPY --from=build /opt/nsq-gateway /opt/nsq-gateway

# Settings by environment: a flag beats them. Probes and metrics are for the host, or the pod.
ENV PATH=/opt/nsq-gateway/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NSQ_GATEWAY_LISTEN=0.0.0.0:8080 \
    NSQ_GATEWAY_MANAGEMENT_LISTEN=0.0.0.0:8081

USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 8081
# SIGTERM drains, which takes up to 31 s with the defaults (docs/docker.md): docker stop --time 40.
STOPSIGNAL SIGTERM
# Asks the management port of `serve`. `broker`, `pub` and `sub` have none: docker run --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 CMD ["nsq-gateway", "health"]
ENTRYPOINT ["nsq-gateway"]
CMD ["serve"]
