package sidecars

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// Runtime makes, ends and lists the containers of proxies. It has more than three methods, since one step may need any of them.
type Runtime interface {
	// List returns the containers of a pod's proxies, or of all if podUID is empty.
	List(ctx context.Context, podUID string) ([]sidecar.Container, error)
	Create(ctx context.Context, spec sidecar.Spec) (id string, err error)
	Signal(ctx context.Context, id string, signal unix.Signal) error
	Stop(ctx context.Context, id string, wait time.Duration) error
	Remove(ctx context.Context, id string) error
	End(ctx context.Context, id string) (sidecar.End, error)
	// Wait returns once a container has ended, or ctx has.
	Wait(ctx context.Context, id string) error
	// Ready reports whether a sandbox runs.
	Ready(ctx context.Context, sandbox string) (bool, error)
	// Addresses returns the addresses of a sandbox that runs, the first one first, or sidecar.ErrGone.
	Addresses(ctx context.Context, sandbox string) ([]string, error)
	// Owner returns which user and group of the node a container's are.
	Owner(ctx context.Context, spec sidecar.Spec) (uid, gid int64, err error)
	// TidyLogs removes logs of proxies that ended long ago. all are the containers in the runtime.
	TidyLogs(all []sidecar.Container) error
	// Applications lists the containers of a sandbox that are the pod's own, in any state.
	Applications(ctx context.Context, sandbox string) ([]sidecar.Application, error)
}

// Images brings the image of a proxy to the node.
type Images interface {
	// Ensure returns nil if the node has the image. Otherwise it returns at once: ErrPulling, or why the last pull failed.
	Ensure(ctx context.Context, p *profile.Version) error
}

// Cluster reads what the API server has.
type Cluster interface {
	// CurrentPod asks the API server for the pod of a sandbox with all its fields. If there is none, the error is podnet.ErrNoPod.
	CurrentPod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error)
	// Choice returns the profile that a pod has chosen. Refusal says why there is none although it has chosen one.
	Choice(ctx context.Context, s podnet.Sandbox) (c Choice, err error)
}

// ControlPlanes reads what Istio's control planes say about their proxies.
type ControlPlanes interface {
	// ConfigMapOf returns a ConfigMap of a control plane's namespace, nil if it is missing.
	ConfigMapOf(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	// ProxyConfigs returns Istio's objects of that kind, of all namespaces.
	ProxyConfigs(ctx context.Context) ([]istio.ProxyConfig, error)
}

// Choice is what a pod has chosen: nothing, a usable profile, or an unusable one.
type Choice struct {
	Name string
	// Hash identifies the named profile's present version, usable or not; "" if there is no such profile.
	Hash    string
	Profile *profile.Version
	// Refusal says why Profile is nil although Name is not empty, and what to do.
	Refusal string
	// Unusable says why Profile is an earlier version than the present one, or is "".
	Unusable string
	// Held reports whether the node may not use Profile yet, which other nodes try first: see rollout.Held.
	Held bool
	// Later reports whether the pod ran already when it chose its first proxy: it has no rules before that is ready, and needs an upgrade slot for it.
	Later bool
	// OptedOut reports whether running proxies are to end. Pods' own proxies end once the rules lead elsewhere: the rules go first.
	OptedOut bool
	// Restart is "", or the wish of the pod or its namespace for a new proxy: a proxy that was made with another one is replaced.
	Restart string
	// Namespace is the pod's, of which a proxy's files may have something. It is nil if it is not known.
	Namespace *corev1.Namespace
	// Ending reports whether the pod is being deleted, or has finished; Finished whether its containers have ended for good.
	Ending, Finished bool
}

// Wish returns what Choice.Restart is for values of annotations, in a form that fits in a label.
func Wish(value string) string {
	if value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:8])
}

// Asker reaches proxies, and their listeners, inside the networks of pods.
type Asker interface {
	// Ask returns nil if the proxy of an epoch answers a question with yes, and ErrPortTaken, whether there is a proxy or not, if another process has its ports.
	Ask(ctx context.Context, s podnet.Sandbox, p *profile.Version, epoch uint32, q probe.Question) error
	// Serves returns nil if an epoch's Envoy has taken over, as it says on a socket of its own.
	Serves(ctx context.Context, s podnet.Sandbox, epoch uint32) error
	// Listens returns ErrNobodyListens if no process listens on the profile's outbound port.
	Listens(ctx context.Context, s podnet.Sandbox, p *profile.Version) error
	// Close has Istio's Envoy with an admin port close its listeners, and tell its clients to connect anew.
	Close(ctx context.Context, s podnet.Sandbox, adminPort int32) error
	// Move has the connections at a listener that closes go to the other listeners of its group, from now on, in a sandbox's network.
	Move(ctx context.Context, s podnet.Sandbox) error
}

// ErrPulling means that an image is being pulled. Notify is called when that has ended.
var ErrPulling = errors.New("the image is being pulled")

// ErrPortTaken means that a process of the pod that is not the proxy's listens on one of the proxy's ports.
var ErrPortTaken = errors.New("the proxy's port is taken")

// ErrNobodyListens means that no proxy takes connections.
var ErrNobodyListens = errors.New("nobody listens")

// Reporter shows the proxies in the cluster.
type Reporter interface {
	Report(s podnet.Sandbox, status Status)
	// Forget is for a pod that is gone: its ManagedProxy goes with it. Retract removes the ManagedProxy of a pod without a proxy.
	Forget(podUID string)
	Retract(podUID string)
}

// Routes says where the rules of pods lead.
type Routes interface {
	// Lead has the rules of a sandbox lead to a proxy, and reports whether they do. If not, Follow is called once they do. serves reports whether the
	// proxy is ready: a sandbox without rules gets some for no other.
	Lead(s podnet.Sandbox, to intent.ManagedProxy, serves bool) (applied bool)
}

// Status is how a pod's proxy is.
type Status struct {
	Profile string
	State   v1alpha1.State
	Ready   bool
	// Epoch, Image and Hash describe the serving proxy, or the newest if none serves.
	Epoch       uint32
	Image, Hash string
	Restarts    int32
	Message     string
	LastUpgrade time.Time
	// Final reports whether nothing follows: the pod has finished.
	Final bool
	// Failure is why the last proxy ended or could not be started, or "".
	Failure string
	// FailedHash is the version of the profile that the pod should have a proxy of, if it failed, or the pod cannot have one. Paused reports
	// whether others wait for that.
	FailedHash string
	Paused     bool
	// Labels reports whether the pod's peers are to send mTLS to the proxy: see istio.TLSModeLabel.
	Labels bool
}

// Prober runs a program of a profile's image for its answer.
type Prober interface {
	// Output returns what the program prints, on either stream.
	Output(ctx context.Context, spec sidecar.Spec) (string, error)
}
