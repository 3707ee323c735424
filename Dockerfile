# An image from the sources, on a machine with nothing but Docker: docker build --tag duetime:0.3.0 .
# `make image` builds the same from a binary, without fetching a base image (Dockerfile.scratch).

FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Static: what it runs in has no libraries. The stand-in for protoc is built on the way.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    --mount=type=cache,target=/src/tools/protoc/target \
    host=$(rustc --version --verbose | sed -n 's/^host: //p') \
    && RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release --package scheduler-node --bin duetime --target "$host" \
    && tools/image-root /root-of-image "target/$host/release/duetime"

FROM scratch
ARG VERSION=0.3.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="duetime" \
      org.opencontainers.image.description="Holds tasks until they are due and hands each one to RabbitMQ, exactly on time" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /root-of-image/ /
ENV PATH=/usr/bin
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/bin/duetime"]
CMD ["node"]
