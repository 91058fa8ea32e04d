package check

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// istioNamespace is where Istio's objects are looked for.
const istioNamespace = "istio-system"

// maxRevisions is how many of Istio's revisions are read: pods may name any number.
const maxRevisions = 10

// envUntaint switches istiod's controller of node taints on, envTaint names its taint.
const (
	envUntaint = "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS"
	envTaint   = "PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME"
)

// readRevisions reads the revisions that pods were injected by. What may be read is read: pods may name what there is no right to.
func readRevisions(ctx context.Context, g Gatherer, f *Facts) (missing error) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(f.revisions)), func(name string) bool { return name == "" })
	for _, name := range names[:min(len(names), maxRevisions)] {
		switch err := f.Istio.readRevision(ctx, g, "-"+name); {
		case apierrors.IsForbidden(err):
			missing = err
		case err != nil:
			return err
		}
	}
	return missing
}

// readRevision reads what Istio's objects with a suffix say, without one those of no revision. What is absent, or is not understood, says nothing.
func (i *Istio) readRevision(ctx context.Context, g Gatherer, suffix string) error {
	configMaps := g.Client.CoreV1().ConfigMaps(istioNamespace)
	mesh, err := existing(configMaps.Get(ctx, "istio"+suffix, metav1.GetOptions{}))
	if err != nil {
		return err
	}
	values, err := existing(configMaps.Get(ctx, "istio-sidecar-injector"+suffix, metav1.GetOptions{}))
	if err != nil {
		return err
	}
	if mesh == nil && values == nil {
		return nil
	}
	r := Revision{Name: strings.TrimPrefix(suffix, "-")}
	if mesh != nil {
		r.OutboundPort, r.InboundPort = meshPortsOf(mesh.Data["mesh"])
	}
	if values != nil {
		r.CNI, r.Hub = cniOf(values.Data["values"]), hubOf(values.Data["values"])
	}
	i.Revisions = append(i.Revisions, r)
	return i.readUntaint(ctx, g, "istiod"+suffix)
}

func (i *Istio) readUntaint(ctx context.Context, g Gatherer, name string) error {
	istiod, err := existing(g.Client.AppsV1().Deployments(istioNamespace).Get(ctx, name, metav1.GetOptions{}))
	if err != nil || istiod == nil {
		return err
	}
	for n := range istiod.Spec.Template.Spec.Containers {
		c := &istiod.Spec.Template.Spec.Containers[n]
		i.Untaint = i.Untaint || isTrue(c, envUntaint)
		if at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == envTaint }); at >= 0 {
			i.Taint = c.Env[at].Value
		}
	}
	return nil
}

// existing returns nil for an object that does not exist.
func existing[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

// The ports of a mesh that names none, which are the agents' defaults, too.
const (
	defaultOutbound = 15001
	defaultInbound  = 15006
)

func meshPortsOf(text string) (outbound, inbound int) {
	var mesh struct {
		ProxyListenPort        int `json:"proxyListenPort"`
		ProxyInboundListenPort int `json:"proxyInboundListenPort"`
	}
	if yaml.Unmarshal([]byte(text), &mesh) != nil {
		return 0, 0
	}
	return cmp.Or(mesh.ProxyListenPort, defaultOutbound), cmp.Or(mesh.ProxyInboundListenPort, defaultInbound)
}

// cniOf returns pilot.cni.enabled of the injector's values, or istio_cni.enabled of older releases; nil if they do not say.
func cniOf(text string) *bool {
	var values struct {
		Pilot struct {
			CNI struct {
				Enabled *bool `json:"enabled"`
			} `json:"cni"`
		} `json:"pilot"`
		IstioCNI struct {
			Enabled *bool `json:"enabled"`
		} `json:"istio_cni"`
	}
	if json.Unmarshal([]byte(text), &values) != nil {
		return nil
	}
	if values.Pilot.CNI.Enabled != nil {
		return values.Pilot.CNI.Enabled
	}
	return values.IstioCNI.Enabled
}
