module istio-pod-network-controller/hack/bench

go 1.26.0

require (
	github.com/coreos/go-iptables v0.8.0
	github.com/google/nftables v0.3.1-0.20251119083706-1db35da82052
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.49.0
	istio-pod-network-controller v0.0.0
)

require (
	github.com/containernetworking/cni v1.3.1 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/mdlayher/netlink v1.11.2 // indirect
	github.com/mdlayher/socket v0.6.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

replace istio-pod-network-controller => ../..
