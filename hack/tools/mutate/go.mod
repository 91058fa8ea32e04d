module istio-pod-network-controller/hack/tools/mutate

go 1.26.0
