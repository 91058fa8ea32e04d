package sidecars

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/profile"
)

// launch is a proxy that is about to be made.
type launch struct {
	profile.Instance
	// owner is the proxy's user and group as the node sees them, to which its files belong.
	owner home.Owner
}

// start makes a proxy. What the owner of the pod or the profile has to know is noted as a failure, the rest is waited for.
func (s stepping) start(ctx context.Context, a plan.Action) (started bool, out outcome) {
	if err := s.launch(ctx, a); err != nil {
		return false, s.notStarted(ctx, err)
	}
	s.memory.started(s.aim, s.choice.Profile)
	return true, outcome{}
}

// canReplace reports whether all is there that a new proxy is made from, so that the serving proxy may be ended first.
func (s stepping) canReplace(ctx context.Context) (can bool, out outcome) {
	if _, err := s.prepare(ctx, s.memory.epoch); err != nil {
		return false, s.notStarted(ctx, err)
	}
	return true, outcome{}
}

func (s stepping) notStarted(ctx context.Context, err error) outcome {
	switch {
	case errors.Is(err, ErrPulling):
		return outcome{pulling: true}
	case errors.Is(err, errReplace): // it is started once the running proxy has ended
		s.memory.noHandover = s.aim.Hash
		return outcome{}
	case errors.Is(err, sidecar.ErrGone), s.choice.Ending: // the pod's next sandbox is followed when it is there, or the runtime ends this one just now
		return outcome{absent: true}
	}
	s.memory.started(s.aim, s.choice.Profile)
	s.fault(ctx, err.Error(), s.aim.Hash)
	return outcome{}
}

// prepare readies what a proxy's container is made from: image, directories, files, and secrets.
func (s stepping) prepare(ctx context.Context, epoch uint32) (l launch, err error) {
	p := s.aim
	addresses, err := s.Runtime.Addresses(ctx, s.key.Sandbox)
	if err != nil {
		return l, err
	}
	if err := s.Images.Ensure(ctx, p); err != nil {
		return l, err
	}
	pod, err := s.Cluster.Pod(ctx, s.sandbox)
	if err != nil {
		return l, err
	}
	l.Instance = profile.Instance{Version: p, Pod: withAddresses(pod, addresses), Sandbox: s.key.Sandbox, Epoch: epoch, Restart: s.choice.Restart}
	if p.Spec.Istio != nil {
		if l.Instance, err = withIstio(ctx, l.Instance, s.ControlPlanes); err != nil {
			return l, err
		}
	}
	l.owner.UID, l.owner.GID = p.Owner()
	if users := pod.Spec.HostUsers; users != nil && !*users {
		if l.owner.UID, l.owner.GID, err = s.Runtime.Owner(ctx, l.spec(s.home)); err != nil {
			return l, err
		}
	}
	files, err := l.Files()
	if err != nil {
		return l, err
	}
	err = errors.Join(s.home.Prepare(l.owner), s.home.WriteFiles(epoch, files, l.owner), s.home.ForgetSecrets(epoch), s.home.PrepareIstio(l.Instance, l.owner))
	if err != nil || len(l.Version.Spec.Secrets) == 0 {
		return l, err
	}
	if may := s.Homes.MayHaveSecrets; may != nil {
		if err := may(); err != nil {
			return l, err
		}
	}
	return l, s.home.GrantSecrets(ctx, s.Secrets, l.Instance, l.owner)
}

// withIstio returns an instance with what Istio's injector would have added to the pod.
func withIstio(ctx context.Context, i profile.Instance, from ControlPlanes) (profile.Instance, error) {
	get := func(namespace, name string) (*corev1.ConfigMap, error) { return from.ConfigMapOf(ctx, namespace, name) }
	mesh, err := istio.ReadMesh(*i.Version.Spec.Istio, get)
	if err != nil {
		return i, err
	}
	return i.WithIstio(mesh)
}

// launch makes a proxy's container, and before that what it needs, and its place in a line of Envoys.
func (s stepping) launch(ctx context.Context, a plan.Action) error {
	l, err := s.prepare(ctx, a.Epoch)
	if err != nil {
		return err
	}
	p, from := s.aim, s.container(a.From)
	if from != nil {
		l.From = &from.Epoch
	}
	if p.HotRestarts() {
		if l.HotRestart, err = takePlace(ctx, s.Prober, s.view, l, from); err != nil {
			return err
		}
	}
	if p.Spec.Handover == v1alpha1.HandoverReusePort {
		if err := s.shareListeners(ctx, from); err != nil {
			return err
		}
	}
	s.memory.epoch = max(s.memory.epoch, a.Epoch+1)
	id, err := s.Runtime.Create(ctx, l.spec(s.home))
	if err != nil {
		return err
	}
	s.answers[id] = answer{seen: time.Now(), epoch: a.Epoch, hash: p.Hash, under: s.choice.Profile.Hash}
	return nil
}

// shareListeners readies a sandbox for a proxy that listens beside its predecessor (nil: there is none). The error says why it cannot. A kernel
// that cannot move connections is no reason not to start: the ManagedProxy says so.
func (s stepping) shareListeners(ctx context.Context, from *sidecar.Container) error {
	switch {
	case from != nil && from.HotRestart != nil:
		return errors.New("the running proxy stays: an Envoy with hot restart cannot be told by a signal to close its listeners; make the pod anew")
	case from != nil && from.StopSignal == "":
		return errReplace
	}
	s.memory.unmoved = ""
	if err := s.Asker.Move(ctx, s.sandbox); err != nil {
		s.memory.unmoved = "an upgrade may reset connections that the old proxy has not accepted yet: " + err.Error()
	}
	return nil
}

// spec returns the proxy's container, which sees its files in a home.
func (l launch) spec(h home.Home) sidecar.Spec { return l.Spec(h.Mounts(l.Instance)) }

// withAddresses returns a pod with its sandbox's addresses. The kubelet writes them into the pod's status later than a new pod's proxy starts.
func withAddresses(pod *corev1.Pod, addresses []string) *corev1.Pod {
	if len(addresses) == 0 {
		return pod
	}
	out := pod.DeepCopy()
	out.Status.PodIP, out.Status.PodIPs = addresses[0], nil
	for _, address := range addresses {
		out.Status.PodIPs = append(out.Status.PodIPs, corev1.PodIP{IP: address})
	}
	return out
}
