module istio-pod-network-controller/hack/matrix

go 1.26.0
