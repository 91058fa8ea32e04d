module istio-pod-network-controller/hack/matrix

go 1.26.0

require istio-pod-network-controller/hack/kernels v0.0.0

replace istio-pod-network-controller/hack/kernels => ../kernels
