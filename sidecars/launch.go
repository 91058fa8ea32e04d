package sidecars

import (
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
)

type launch struct {
	profile *Profile
	pod     *corev1.Pod // as the API server has it, with the sandbox's addresses
	sandbox string
	epoch   uint32
	// owner is the proxy's user and group as the node sees them, to which its files belong.
	owner owner
	// from is the epoch of the proxy that it takes over from, or nil.
	from *uint32
	// place is an Envoy's place in its line, nil for other proxies.
	place *sidecar.HotRestart
	// restart is the pod's wish for a new proxy, see Choice.
	restart string
	// istio is what was computed for the proxy of a profile with istio, nil for others.
	istio *istio.Proxy
}

// start makes a proxy. What the owner of the pod or the profile has to know is noted as a failure, the rest is waited for.
func (s stepping) start(ctx context.Context, a Action) (started bool, out outcome) {
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
	l = launch{profile: p, pod: withAddresses(pod, addresses), sandbox: s.key.Sandbox, epoch: epoch, owner: p.owner(), restart: s.choice.Restart}
	if l, err = l.withIstio(ctx, s.ControlPlanes); err != nil {
		return l, err
	}
	if users := pod.Spec.HostUsers; users != nil && !*users {
		if l.owner.uid, l.owner.gid, err = s.Runtime.Owner(ctx, l.spec(s.home)); err != nil {
			return l, err
		}
	}
	files, err := l.files()
	if err != nil {
		return l, err
	}
	err = errors.Join(s.home.prepare(l.owner), s.home.write(epoch, files, l.owner), s.home.forgetSecrets(epoch), prepareIstio(s.home, l))
	if err != nil || len(l.profile.Spec.Secrets) == 0 {
		return l, err
	}
	if safe := s.Homes.inMemory; safe != nil {
		if err := safe(); err != nil {
			return l, err
		}
	}
	return l, grantSecrets(ctx, s.Secrets, s.home.secrets(epoch), l)
}

// launch makes a proxy's container, and before that what it needs, and its place in a line of Envoys.
func (s stepping) launch(ctx context.Context, a Action) error {
	l, err := s.prepare(ctx, a.Epoch)
	if err != nil {
		return err
	}
	p, from := s.aim, s.container(a.From)
	if from != nil {
		l.from = &from.Epoch
	}
	if p.hot() {
		if l.place, err = takePlace(ctx, s.Prober, s.view, l, from); err != nil {
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

// files returns the files that were computed, or renders the profile's.
func (l launch) files() (map[string]string, error) {
	if l.istio != nil {
		return l.istio.Files, nil
	}
	return l.profile.render(Data{
		Pod: PodDataOf(l.pod), Network: l.profile.network(),
		Epoch: l.epoch, Slot: l.epoch % slots, HandoverSocket: path.Join(PathRun, handoverSocket(l.epoch)), AdminSocket: path.Join(PathRun, admin(l.epoch)),
	})
}

func (l launch) spec(h home) sidecar.Spec {
	p := l.profile.Spec
	out := sidecar.Spec{
		Sandbox: l.sandbox, Epoch: l.epoch, Image: p.Image, Command: p.Command, Args: append(slices.Clip(p.Args), l.handoverArgs()...),
		Labels: sidecar.Labels{
			PodUID: string(l.pod.UID), PodNamespace: l.pod.Namespace, PodName: l.pod.Name, Profile: l.profile.Name, Hash: l.profile.Hash,
		},
		Env: l.env(), Mounts: append(h.mounts(l.epoch, p.Secrets), l.istioMounts(h)...), NetAdmin: p.Network.Transparent,
		UID: l.profile.owner().uid, GID: l.profile.owner().gid,
		Resources: l.resources(),
	}
	out.Labels.HotRestart = l.place
	out.Labels.StopSignal, out.Labels.Restart = p.StopSignal, l.restart
	if p.Handover == v1alpha1.HandoverHAProxy {
		out.Labels.StopSignal = "USR1" // HAProxy finishes its connections, and as the first process of its namespace ignores TERM
	}
	return out
}

func (l launch) handoverArgs() []string {
	switch l.profile.Spec.Handover {
	case v1alpha1.HandoverHAProxy:
		if l.from == nil {
			return nil
		}
		return []string{"-x", path.Join(PathRun, handoverSocket(*l.from))}
	case v1alpha1.HandoverEnvoy:
		if l.place != nil {
			return hotArgs(*l.place, l.profile.drainLimit())
		}
	case v1alpha1.HandoverNone, v1alpha1.HandoverReusePort:
	}
	return nil
}

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

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func (l launch) env() (out []string) {
	variables := l.variables()
	if l.istio != nil {
		variables = l.istio.Env
	}
	for _, v := range variables {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

// variables are the environment that every proxy gets, and the profile's.
func (l launch) variables() []istio.Variable {
	out := []istio.Variable{{Name: "SIDECAR_EPOCH", Value: number(l.epoch)}}
	for _, e := range l.profile.Spec.Env {
		value := e.Value
		if e.FieldPath != "" {
			value = l.field(e.FieldPath)
		}
		out = append(out, istio.Variable{Name: e.Name, Value: value})
	}
	return out
}

// field returns a field of the pod, by the path that the schema allows.
func (l launch) field(fieldPath string) string {
	switch fieldPath {
	case "metadata.name":
		return l.pod.Name
	case "metadata.namespace":
		return l.pod.Namespace
	case "metadata.uid":
		return string(l.pod.UID)
	case "spec.nodeName":
		return l.pod.Spec.NodeName
	case "spec.serviceAccountName":
		return l.pod.Spec.ServiceAccountName
	case "status.podIP":
		return l.pod.Status.PodIP
	case "status.podIPs":
		return strings.Join(addressesOf(l.pod), ",")
	}
	of := map[string]map[string]string{"metadata.labels": l.pod.Labels, "metadata.annotations": l.pod.Annotations}
	name, rest, _ := strings.Cut(fieldPath, "['")
	return of[name][strings.TrimSuffix(rest, "']")]
}
