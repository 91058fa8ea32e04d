package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"istio-pod-network-controller/diagnostics/cluster"
)

// kubeFlags are the flags of every command that asks a cluster, with kubectl's names and defaults.
type kubeFlags struct {
	kubeconfig     string
	context        string
	namespace      string
	agentNamespace string
}

func (k *kubeFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&k.kubeconfig, "kubeconfig", "", "the kubeconfig file; empty means $KUBECONFIG, then ~/.kube/config, then the pod's own service account")
	fs.StringVar(&k.context, "context", "", "the kubeconfig's context; empty means its current one")
	fs.StringVarP(&k.namespace, "namespace", "n", "", "the namespace; empty means the context's")
	fs.StringVar(&k.agentNamespace, "agent-namespace", "", "the namespace of the agents; empty means wherever pods with the agent's label are")
}

// connection is a client of the cluster that the flags name, and the namespace of commands for which none was given.
type connection struct {
	*kubernetes.Clientset
	config    *rest.Config
	namespace string
}

// connect makes a client. It sends nothing.
func (k *kubeFlags) connect() (c connection, err error) {
	if c.config, c.namespace, err = k.config(); err == nil {
		c.Clientset, err = cluster.NewClient(c.config)
	}
	return c, err
}

// config returns how to reach the cluster, and the namespace of commands for which none was given.
func (k *kubeFlags) config() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: k.context}
	overrides.Context.Namespace = k.namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		if clientcmd.IsEmptyConfig(err) || errors.Is(err, clientcmd.ErrEmptyConfig) {
			return nil, "", errors.New("no cluster to ask: neither --kubeconfig, $KUBECONFIG nor ~/.kube/config names one, and this is no pod of a cluster")
		}
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return config, namespace, nil
}
