module istio-pod-network-controller

go 1.26.0

require (
	github.com/google/nftables v0.3.1-0.20251119083706-1db35da82052
	github.com/spf13/cobra v1.10.2
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	k8s.io/cri-api v0.37.2
	sigs.k8s.io/controller-runtime v0.25.2
)
