# The image for `serve`, `broker`, `pub` and `sub`; its entry point is nsq-gateway.
#
#   docker build --tag nsq-gateway .
#   docker run --rm --read-only --publish 8080:8080 nsq-gateway serve \
#       --nsqd-tcp-address nsqd-1:4150 --require-auth
#   docker run --rm --read-only --no-healthcheck nsq-gateway broker --tcp-address 0.0.0.0:4150
#
# A second, several times larger image has Spark and Java for `pipeline`:
#
#   docker build --target pipeline --tag nsq-gateway-pipeline .
#
# See docs/docker.md.
#
# The base image is pinned by digest. To update it, in every stage:
#   docker buildx imagetools inspect python:3.13-slim --format '{{.Manifest.Digest}}'

# ---- Build: a virtual environment with the package and requirements/image.txt -------------------

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
WORKDIR /build

# pip stays out of the environment that the last stage copies.
RUN ["python", "-m", "venv", "--without-pip", "/opt/nsq-gateway"]
COPY requirements/image.txt requirements/
# Only wheels, pinned by hash: installing them runs none of their code.
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--require-hashes", "--only-binary", ":all:", "--requirement", "requirements/image.txt"]

# The package contains symbolic links to both contracts.
COPY pyproject.toml README.md LICENSE openapi.yaml asyncapi.yaml ./
COPY gateway gateway
COPY pyspark_nsq pyspark_nsq
# requirements/image.txt includes the build backend, so nothing is downloaded here.
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--no-index", "--no-deps", "--no-build-isolation", "."]
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "uninstall", "--yes", "setuptools"]
# Compile now: the file system may be read-only at run time. unchecked-hash saves a stat of each
# source file.
RUN ["/opt/nsq-gateway/bin/python", "-m", "compileall", "-q", "-j", "0", \
     "--invalidation-mode", "unchecked-hash", "/opt/nsq-gateway/lib"]

# ---- Build of the pipeline: Spark in the same environment -----------------------------------

FROM build AS build-pipeline

COPY requirements/image-spark.txt requirements/
# PySpark is published without a wheel, so it is built here, with the pinned build backend, which the
# stage above has uninstalled.
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--require-hashes", "--only-binary", ":all:", "--requirement", "requirements/image.txt"]
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "install", \
     "--require-hashes", "--only-binary", ":all:", "--no-binary", "pyspark", \
     "--no-build-isolation", "--requirement", "requirements/image-spark.txt"]
RUN ["python", "-m", "pip", "--python", "/opt/nsq-gateway/bin/python", "uninstall", "--yes", "setuptools"]
RUN ["/opt/nsq-gateway/bin/python", "-m", "compileall", "-q", "-j", "0", \
     "--invalidation-mode", "unchecked-hash", "/opt/nsq-gateway/lib"]

# ---- The pipeline image: driver, executors, and jobs on one machine ------------------------------

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS pipeline

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nsq-gateway-pipeline" \
      org.opencontainers.image.description="Data pipeline between NSQ and Spark: archive, metrics, replay." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Java is not pinned: Debian removes a version from its archive with the next security update.
# tini runs as PID 1 to reap the orphaned processes that Spark leaves.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*
RUN ["python", "-m", "pip", "uninstall", "--yes", "--root-user-action", "ignore", "pip"]
# Hadoop fails for a user ID without a name. Spark mounts a driver's options at /opt/spark/conf.
RUN ["useradd", "--uid", "10001", "--user-group", "--home-dir", "/tmp", "--no-create-home", \
     "--shell", "/usr/sbin/nologin", "nsq"]
RUN ["mkdir", "-p", "/opt/spark/conf", "/opt/spark/work-dir"]
# A new volume that is mounted here takes its owner from this folder.
RUN ["install", "--directory", "--owner=10001", "--group=10001", "/data"]
# A path for the main file of spark-submit that does not contain Python's version.
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
# The only directory that must be writable: use --tmpfs /tmp, or an emptyDir.
WORKDIR /tmp
STOPSIGNAL SIGTERM
# A job has health checks only if management_listen is set, so the image has none.
HEALTHCHECK NONE
ENTRYPOINT ["tini", "--", "bash", "/opt/nsq-gateway/entrypoint.sh"]
CMD ["pipeline", "--help"]

# ---- The gateway image -----------------------------------------------------------------------

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="nsq-gateway" \
      org.opencontainers.image.description="HTTP and WebSockets in front of NSQ, with an embedded broker." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# pip is part of the base image and not needed.
RUN ["python", "-m", "pip", "uninstall", "--yes", "--root-user-action", "ignore", "pip"]
# For the messages of the broker. A new volume that is mounted here takes its owner from this folder.
RUN ["install", "--directory", "--owner=10001", "--group=10001", "/data"]

COPY --from=build /opt/nsq-gateway /opt/nsq-gateway

# Flags override these settings. The management port serves probes and metrics; do not publish it.
ENV PATH=/opt/nsq-gateway/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NSQ_GATEWAY_LISTEN=0.0.0.0:8080 \
    NSQ_GATEWAY_MANAGEMENT_LISTEN=0.0.0.0:8081

USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 8081
# SIGTERM starts a drain of up to 31 s with the defaults (docs/docker.md): docker stop --time 40.
STOPSIGNAL SIGTERM
# Queries the management port of `serve`. The other commands have none: use --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 CMD ["nsq-gateway", "health"]
ENTRYPOINT ["nsq-gateway"]
CMD ["serve"]
