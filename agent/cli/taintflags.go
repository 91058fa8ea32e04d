package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/controllers"
)

// autoscalers is the domain of the taints by which Cluster Autoscaler knows a node that is still starting.
const autoscalers = "cluster-autoscaler.kubernetes.io"

func (o *runOptions) addStartupTaintFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.StartupTaint, "startup-taint", false, "take the startup taint off the agent's node once the agent is ready")
	fs.StringVar(&o.StartupTaintKey, "startup-taint-key", controllers.KeyStartupTaint, "key of that taint")
}

// validateTaintKey returns an error unless the agent may remove taints with the key. Kubernetes' own taints say that a node is not
// ready or is for special pods: who removes one of them overrules another controller.
func validateTaintKey(key string) error {
	if faults := validation.IsQualifiedName(key); len(faults) > 0 {
		return fmt.Errorf("--startup-taint-key: value %q: %s", key, strings.Join(faults, "; "))
	}
	domain, _, named := strings.Cut(key, "/")
	if named && within(domain, "kubernetes.io") && !within(domain, autoscalers) {
		return fmt.Errorf("--startup-taint-key: value %q: a taint of Kubernetes itself; want a key of your own, or one below startup-taint.%s/", key, autoscalers)
	}
	return nil
}

// within reports whether domain is parent, or below it.
func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
