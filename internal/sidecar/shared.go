package sidecar

// LabelShared is on the pods, and their DaemonSets, that run the proxy which the pods of a node share. Its value is the SidecarProfile's name.
const LabelShared = "pod-network-controller.istio.io/shared-proxy"
