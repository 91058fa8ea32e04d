package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
)

// spec computes what the pod of the flags asks for. If it does not ask for any, the error says why.
func (o *rulesOptions) spec(cmd *cobra.Command) (iptables.Spec, error) {
	if err := o.IntentFlags.Validate(); err != nil {
		return iptables.Spec{}, err
	}
	if o.pod == "" {
		err := errors.New("--pod: required")
		if o.netns == "" && !o.dryRun {
			err = errors.Join(errNoNetNS, err)
		}
		return iptables.Spec{}, err
	}
	var pod corev1.Pod
	if err := readManifest(cmd, o.pod, "Pod", &pod); err != nil {
		return iptables.Spec{}, fmt.Errorf("--pod: %w", err)
	}
	var ns *corev1.Namespace
	if o.namespace != "" {
		ns = &corev1.Namespace{}
		if err := readManifest(cmd, o.namespace, "Namespace", ns); err != nil {
			return iptables.Spec{}, fmt.Errorf("--namespace: %w", err)
		}
		if pod.Namespace != "" && ns.Name != pod.Namespace {
			return iptables.Spec{}, fmt.Errorf("--namespace: %s is namespace %q, the pod belongs to %q", o.namespace, ns.Name, pod.Namespace)
		}
	}
	in, err := intent.Of(&pod, ns, o.Config)
	if err != nil {
		return iptables.Spec{}, err
	}
	if !in.Redirect {
		return iptables.Spec{}, fmt.Errorf("pod %q is not redirected: %s", pod.Name, in.Reason)
	}
	return in.Spec, nil
}

// wanted returns the rules of the spec.
func (o *rulesOptions) wanted(cmd *cobra.Command) (iptables.Ruleset, error) {
	spec, err := o.spec(cmd)
	if err != nil {
		return iptables.Ruleset{}, err
	}
	return iptables.Rules(spec)
}

// readManifest reads one object of a kind from a file, or from standard input for "-".
func readManifest(cmd *cobra.Command, file, kind string, into any) error {
	data, err := cmdline.ReadFile(cmd.Context(), cmd.InOrStdin(), file, cmdline.MaxManifest, fmt.Sprintf("larger than %d bytes", cmdline.MaxManifest))
	if err != nil {
		return err
	}
	if strings.Contains(strings.TrimPrefix(strings.TrimSpace(string(data)), "---"), "\n---") {
		return fmt.Errorf("read %s: it holds several documents, want one %s", file, kind)
	}
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if head.Kind != kind || head.APIVersion != "v1" {
		return fmt.Errorf("read %s: it holds a %q of %q, want one %s of v1", file, head.Kind, head.APIVersion, kind)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}
