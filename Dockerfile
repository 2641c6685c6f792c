# Two images: the default, and `--target full`, which also has the packages of every extra that a command can need.
# Build stages: pinned requirements into a virtual environment, then forwarder without touching them.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements/run.txt requirements/build.txt requirements/
RUN python -m venv /opt/forwarder \
    && /opt/forwarder/bin/pip install --require-hashes --only-binary :all: -r requirements/run.txt \
    && pip install --require-hashes --only-binary :all: -r requirements/build.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY config/ config/
COPY docs/ docs/
COPY man/ man/
COPY forwarder/ forwarder/
# The mark is how messages about a missing extra know that they are read in an image (forwarder/core/installation.py).
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/forwarder/bin/pip install --no-deps --no-index wheels/*.whl \
    && touch /opt/forwarder/forwarder-image

FROM build AS build-full
COPY requirements/full.txt requirements/
RUN /opt/forwarder/bin/pip install --require-hashes --only-binary :all: -r requirements/full.txt

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base
LABEL org.opencontainers.image.title="forwarder" \
      org.opencontainers.image.description="Forwards product-analytics events to your analytics service: buffered, unchanged, and accounted for." \
      org.opencontainers.image.version="1.0.0rc1" \
      org.opencontainers.image.licenses="MIT"
# /var/lib/forwarder is all that it ever writes to: the root file system can be read-only, and nothing else is this user's.
RUN groupadd --system --gid 10001 forwarder \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/forwarder --no-create-home --shell /usr/sbin/nologin forwarder \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/forwarder
# A container is reached from outside: unlike the command, the image listens on all its interfaces.
# STATE_DIRECTORY is where dead letters go beside a buffer in memory; one on disk is there anyway. TMPDIR: SQLite may want to sort in a file.
ENV PATH=/opt/forwarder/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    STATE_DIRECTORY=/var/lib/forwarder \
    TMPDIR=/var/lib/forwarder \
    FORWARDER_SOURCES__HTTP__LISTEN=0.0.0.0:8320 \
    FORWARDER_ADMIN__LISTEN=0.0.0.0:8321
USER 10001:10001
VOLUME /var/lib/forwarder
EXPOSE 8320 8321
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=5s CMD ["forwarder", "health"]
ENTRYPOINT ["forwarder"]
CMD ["run"]

FROM base AS full
COPY --from=build-full /opt/forwarder /opt/forwarder

FROM base
COPY --from=build /opt/forwarder /opt/forwarder
