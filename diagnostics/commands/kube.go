package commands

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"istio-pod-network-controller/diagnostics/cluster"
)

// Kubeconfig is how a command finds its cluster. ConfigFlags of kubectl is, too.
type Kubeconfig interface {
	// AddFlags adds flags with kubectl's names, of which one is "namespace".
	AddFlags(fs *pflag.FlagSet)
	ToRawKubeConfigLoader() clientcmd.ClientConfig
}

// kubeFlags are the flags of every command that asks a cluster.
type kubeFlags struct {
	Kubeconfig
	namespaceFlag  pflag.Value
	agentNamespace string
}

func (k *kubeFlags) add(fs *pflag.FlagSet) {
	k.AddFlags(fs)
	k.namespaceFlag = fs.Lookup("namespace").Value
	fs.StringVar(&k.agentNamespace, "agent-namespace", "", "the namespace of the agents; empty means wherever pods with the agent's label are")
}

// givenNamespace returns the flag's value, which may be empty.
func (k *kubeFlags) givenNamespace() string { return k.namespaceFlag.String() }

// fewFlags are the flags of the agent's program, with kubectl's names and defaults.
type fewFlags struct{ kubeconfig, context, namespace string }

// AddFlags adds them.
func (f *fewFlags) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "the kubeconfig file; empty means $KUBECONFIG, then ~/.kube/config, then the pod's own service account")
	fs.StringVar(&f.context, "context", "", "the kubeconfig's context; empty means its current one")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "the namespace; empty means the context's")
}

// ToRawKubeConfigLoader returns what reads the kubeconfig.
func (f *fewFlags) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	overrides.Context.Namespace = f.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// connection is a client of the cluster that the flags name, and the namespace of commands for which none was given.
type connection struct {
	*kubernetes.Clientset
	config    *rest.Config
	namespace string
}

// connect makes a client. It sends nothing.
func (k *kubeFlags) connect() (c connection, err error) {
	loader := k.ToRawKubeConfigLoader()
	c.config, err = loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) || errors.Is(err, clientcmd.ErrEmptyConfig) {
		return c, errors.New("no cluster to ask: neither --kubeconfig, $KUBECONFIG nor ~/.kube/config names one, and this is no pod of a cluster")
	}
	if err == nil {
		c.namespace, _, err = loader.Namespace()
	}
	if err != nil {
		return c, fmt.Errorf("read kubeconfig: %w", err)
	}
	c.Clientset, err = cluster.NewClient(c.config)
	return c, err
}

// podNamed returns which pod an argument names: POD, or pod/POD as kubectl prints it, in the namespace of the flags, or NAMESPACE/POD.
func (k *kubeFlags) podNamed(client connection, arg string) (namespace, name string, err error) {
	namespace, name = client.namespace, arg
	before, after, found := strings.Cut(arg, "/")
	switch given := k.givenNamespace(); {
	case !found:
	case before == "pod" || before == "pods":
		name = after
	case given != "" && given != before:
		return "", "", fmt.Errorf("%q names another namespace than --namespace %s: leave one of them out", arg, given)
	default:
		namespace, name = before, after
	}
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", "", fmt.Errorf("%q: want a pod's name, or NAMESPACE/NAME", arg)
	}
	return namespace, name, nil
}

// completionTimeout bounds what a shell waits for after the Tab key.
const completionTimeout = 2 * time.Second

// metadataOnly asks for objects without spec and status.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// complete has shells offer the cluster's namespaces and nodes, and the values of other flags, which the command must have: a test completes each.
func (k *kubeFlags) complete(cmd *cobra.Command, fixed map[string][]string) {
	for flag, resource := range map[string]string{"namespace": "namespaces", "agent-namespace": "namespaces", "node": "nodes"} {
		if cmd.Flags().Lookup(flag) == nil {
			continue
		}
		_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return k.names(cmd.Context(), resource, typed), cobra.ShellCompDirectiveNoFileComp
		})
	}
	for flag, values := range fixed {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// names returns the names of the cluster's objects that begin as typed. Whatever goes wrong, there is none: a shell shows no errors.
func (k *kubeFlags) names(ctx context.Context, resource, typed string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	client, err := k.connect()
	if err != nil {
		return nil
	}
	// All of them at once, as names and no more, from the API server's memory.
	raw, err := client.CoreV1().RESTClient().Get().Resource(resource).Param("resourceVersion", "0").SetHeader("Accept", metadataOnly).DoRaw(ctx)
	var list metav1.PartialObjectMetadataList
	if err != nil || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for i := range list.Items {
		if name := list.Items[i].Name; strings.HasPrefix(name, typed) {
			names = append(names, name)
		}
	}
	return names
}

// startProgress says on a terminal what takes longer than a second, unless stop is called before.
func startProgress(out io.Writer, what string) (stop func()) {
	if file, ok := out.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	late := time.AfterFunc(time.Second, func() { _, _ = fmt.Fprintln(out, what, "...") })
	return func() { late.Stop() }
}

// clusterError says what an error of the API server means for the person who asked, and what to do. Other errors stay as they are.
func clusterError(config *rest.Config, err error) error {
	var certificate *tls.CertificateVerificationError
	var network net.Error
	var request *url.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster at %s does not accept the credentials (they may have expired): log in again, or choose another --context: %w", config.Host, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: an administrator can grant the right; config/samples/status-reader.yaml has all that are needed", err)
	case noCredentials(err):
		return fmt.Errorf("the command that the kubeconfig names for credentials gives none for %s: log in again, or install it: %w", config.Host, err)
	case noAPI(err):
		return fmt.Errorf("what answers at %s is no API server of Kubernetes, but perhaps a page to log in, or a proxy; is it the right --context? %w", config.Host, err)
	case errors.As(err, &certificate):
		return fmt.Errorf("the server at %s does not show the certificate that the kubeconfig expects; is it the right cluster? %w", config.Host, certificate)
	case errors.As(err, &network) && network.Timeout() || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || noTimeLeft(err):
		return fmt.Errorf("the cluster at %s did not answer in time; is it up, and reachable from here? %w", config.Host, err)
	case errors.As(err, &request):
		return fmt.Errorf("the cluster at %s cannot be reached; is it up, and is it the right --context? %w", config.Host, request.Err)
	}
	return err
}

// noCredentials reports whether the program that the kubeconfig names for credentials failed, as it does when a login has expired. The cluster was
// not asked then. client-go has no type for it.
func noCredentials(err error) bool { return strings.Contains(err.Error(), "getting credentials: ") }

// noTimeLeft reports whether the time was over before a request could be sent, which only the client's rate limiter notices. It has no type for it.
func noTimeLeft(err error) bool {
	return strings.Contains(err.Error(), "would exceed context deadline")
}

// noAPI reports whether something else than an API server has answered, such as a web server. client-go has no type for it.
func noAPI(err error) bool {
	return strings.Contains(err.Error(), "serializer for text/html") || strings.Contains(err.Error(), "unable to parse the server version")
}

// unasked reports whether the cluster did not answer, or not to these credentials: other flags of the command change nothing then.
func unasked(err error) bool {
	var request *url.Error
	return err != nil && (errors.As(err, &request) || apierrors.IsUnauthorized(err) || apierrors.IsTimeout(err) || noTimeLeft(err) || noAPI(err))
}
