# For people with a container engine; `make image` makes the same image without one.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN GOARCH=$TARGETARCH make build

# For nodes that stay on iptables (--target iptables): the programs of both flavours beside the agent.
FROM debian:12-slim AS iptables
RUN apt-get update && apt-get install -y --no-install-recommends iptables && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/build/istio-pod-network-controller /src/build/istio-pod-network-cni /src/build/istio-pod-network-probe /src/build/istio-pod-network-wait /
USER 0:0
ENTRYPOINT ["/istio-pod-network-controller"]

# The default. The binary is static and talks to the kernel, the runtime and the API server itself: nothing else but the
# small programs for probes, for pods and for the CNI chain is in the image.
FROM scratch
COPY --from=build /src/build/istio-pod-network-controller /src/build/istio-pod-network-cni /src/build/istio-pod-network-probe /src/build/istio-pod-network-wait /
# Capabilities that the pod's security context adds are effective for root only.
USER 0:0
ENTRYPOINT ["/istio-pod-network-controller"]
