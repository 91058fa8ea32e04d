package cli

import (
	"strings"
	"testing"
)

func TestTheStartupTaintIsNoneOfKubernetes(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want string // in the error
	}{
		"the default's form":                 {in: "pod-network-controller.istio.io/not-ready"},
		"Cluster Autoscaler's startup taint": {in: "startup-taint.cluster-autoscaler.kubernetes.io/pod-network-controller"},
		"its older name":                     {in: "ignore-taint.cluster-autoscaler.kubernetes.io/pod-network-controller"},
		"one without a domain":               {in: "mesh-not-ready"},
		"a domain that ends alike":           {in: "notkubernetes.io/not-ready"},
		"a node that is not ready":           {in: "node.kubernetes.io/not-ready", want: "a taint of Kubernetes itself"},
		"a control plane":                    {in: "node-role.kubernetes.io/control-plane", want: "a taint of Kubernetes itself"},
		"a cloud's node":                     {in: "node.cloudprovider.kubernetes.io/uninitialized", want: "a taint of Kubernetes itself"},
		"the domain itself":                  {in: "kubernetes.io/a", want: "a taint of Kubernetes itself"},
		"none":                               {in: "", want: "name part must be non-empty"},
		"a value and an effect, too":         {in: "a.b/c=d:NoSchedule", want: "value \"a.b/c=d:NoSchedule\""},
	} {
		t.Run(name, func(t *testing.T) {
			// The missing node's name keeps the agent from running.
			_, _, errOut := call(t, "", "run", "--startup-taint-key="+tc.in)
			if got := strings.Contains(errOut, "--startup-taint-key"); got != (tc.want != "") || !strings.Contains(errOut, tc.want) {
				t.Errorf("%s", errOut)
			}
		})
	}
}
