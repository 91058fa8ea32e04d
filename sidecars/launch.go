package sidecars

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/plan"
	"istio-pod-network-controller/sidecars/profile"
)

// launch is a proxy that is about to be made.
type launch struct {
	instance profile.Instance
	// owner is the proxy's user and group as the node sees them, to which its files belong.
	owner home.Owner
	// sources are the ConfigMaps of Istio's proxy. outdated says why they are not the control plane's present ones, or is "".
	sources  *istio.Sources
	outdated string
}

// prepare readies what a proxy's container is made from: image, directories, files, and secrets.
func prepare(ctx context.Context, m *Manager, o observed, p *profile.Version, epoch uint32) (l launch, err error) {
	addresses, err := m.Runtime.Addresses(ctx, o.key.Sandbox)
	if err != nil {
		return l, err
	}
	if err := m.Images.Ensure(ctx, p); err != nil {
		return l, err
	}
	pod, err := currentPod(ctx, m, o)
	if err != nil {
		return l, err
	}
	l.instance = profile.Instance{
		Version: p, Pod: withAddresses(pod, addresses), Namespace: o.choice.Namespace, Sandbox: o.key.Sandbox, Epoch: epoch, Restart: o.choice.Restart,
	}
	if p.Hash != o.choice.Profile.Hash { // the pod was only compared with the present version
		if why := p.Unfit(pod); why != "" {
			return l, podFault{errors.New(why)}
		}
	}
	plain := l
	l, files, err := l.rendered(ctx, m)
	if err != nil {
		plain.instance.Pod, plain.instance.Namespace = withoutNotes(l.instance.Pod), nil
		if _, _, why := plain.rendered(ctx, m); why == nil {
			err = podFault{err}
		}
		return l, err
	}
	l.owner = home.Owner{UID: p.UID(), GID: p.Spec.RunAsGroup}
	if users := pod.Spec.HostUsers; users != nil && !*users {
		if l.owner.UID, l.owner.GID, err = m.Runtime.Owner(ctx, l.spec(o.home)); err != nil {
			return l, err
		}
	}
	own := o.home.Epoch(epoch)
	err = errors.Join(o.home.Prepare(l.owner), home.KeepPod(o.home, pod), own.WriteFiles(files, l.owner), own.ForgetSecrets(), own.PrepareIstio(l.instance, l.owner), own.WriteFacts(home.FactsOf(l.instance)))
	if err != nil || len(l.instance.Version.Spec.Secrets) == 0 {
		return l, err
	}
	if may := m.Homes.MayHaveSecrets; may != nil {
		if err := may(); err != nil {
			return l, err
		}
	}
	return l, own.GrantSecrets(ctx, m.Secrets, l.instance, l.owner)
}

// podFault is an error that labels or annotations of the pod, or of its namespace, cause. It says nothing about the version of the profile.
type podFault struct{ error }

func (f podFault) Unwrap() error { return f.error }

// rendered returns the launch with what Istio's injector would have added, and the proxy's files.
func (l launch) rendered(ctx context.Context, m *Manager) (_ launch, files map[string]string, err error) {
	if l.instance.Version.Spec.Istio != nil {
		if l, err = l.withIstio(ctx, m); err != nil {
			return l, nil, err
		}
	}
	files, err = l.instance.Files()
	return l, files, err
}

// withoutNotes returns a pod without labels and annotations.
func withoutNotes(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Labels, out.Annotations = nil, nil
	return out
}

// awayLimit is how long the API server may take to describe a pod that has had a proxy.
const awayLimit = 3 * time.Second

// currentPod returns the pod as the API server has it or, while that does not answer, as the sandbox's last proxy had it: a proxy that ends then is replaced.
func currentPod(ctx context.Context, m *Manager, o observed) (*corev1.Pod, error) {
	kept := home.KeptPod(o.home)
	if kept == nil {
		return m.Cluster.CurrentPod(ctx, o.sandbox)
	}
	soon, cancel := context.WithTimeout(ctx, awayLimit)
	defer cancel()
	pod, err := m.Cluster.CurrentPod(soon, o.sandbox)
	if err != nil && !errors.Is(err, podnet.ErrNoPod) {
		return kept, nil
	}
	return pod, err
}

// withIstio adds what Istio's injector would have added to the pod. While the control plane's ConfigMaps cannot be used, it is computed from what made
// the last proxy of the profile ready on the node.
func (l launch) withIstio(ctx context.Context, m *Manager) (launch, error) {
	of := *l.instance.Version.Spec.Istio
	of.Namespace = cmp.Or(of.Namespace, istio.DefaultNamespace)
	get := func(namespace, name string) (*corev1.ConfigMap, error) {
		return m.ControlPlanes.ConfigMapOf(ctx, namespace, name)
	}
	sources, why := istio.Read(of, get)
	if why == nil {
		sources.ProxyConfigs, why = m.ControlPlanes.ProxyConfigs(ctx)
	}
	if why == nil {
		var out launch
		if out, why = l.computed(&sources); why == nil {
			return out, nil
		}
	}
	last := m.Good.Istio(l.instance.Version.Name, of)
	if last == nil {
		return l, why
	}
	out, err := l.computed(last)
	if err != nil {
		return l, why
	}
	out.outdated = "its proxy has the last configuration that worked on this node, since the control plane's cannot be used: " + why.Error()
	return out, nil
}

func (l launch) computed(from *istio.Sources) (launch, error) {
	mesh, err := from.Parse()
	if err != nil {
		return l, err
	}
	l.sources = from
	l.instance, err = l.instance.WithIstio(mesh)
	return l, err
}

// create makes a proxy's container, and before that what it needs, and its epoch in a line of Envoys.
func create(ctx context.Context, m *Manager, o observed, mem memory, p *profile.Version, a plan.Action) (observed, memory, error) {
	l, err := prepare(ctx, m, o, p, a.Epoch)
	if err != nil {
		return o, mem, err
	}
	from := o.container(a.From)
	if from != nil {
		l.instance.From = &from.Epoch
		if err := handOver(o, *from, l); err != nil {
			return o, mem, err
		}
	}
	if p.HotRestarts() {
		if l.instance.HotRestart, err = joinLine(ctx, m.Prober, o, l, from); err != nil {
			return o, mem, err
		}
	}
	if p.Spec.Handover == profile.HandoverReusePort {
		unmoved, err := shareListeners(ctx, m.Asker, o.sandbox, from)
		if err != nil {
			return o, mem, err
		}
		mem.unmoved = unmoved
	}
	if o.home.Notes().Finished(time.Now()) { // while the proxy was readied
		return o, mem, sidecar.ErrGone
	}
	mem.epoch, mem.outdated = max(mem.epoch, a.Epoch+1), l.outdated
	id, err := m.Runtime.Create(ctx, l.spec(o.home))
	if err != nil {
		return o, mem, err
	}
	return o.with(id, proxy{seenSince: time.Now(), epoch: a.Epoch, hash: p.Hash, madeUnder: o.choice.Profile.Hash, sources: l.sources}), mem, nil
}

// handOver readies the running proxy for its successor. The error says why it cannot take over: the kernel shares a port (SO_REUSEPORT), and Envoy its
// memory, only between proxies of one user.
func handOver(o observed, from sidecar.Container, l launch) error {
	if l.instance.Version.Spec.Handover == profile.HandoverHAProxy {
		return o.home.GiveSocket(from.Epoch, l.owner)
	}
	of, next := o.home.Epoch(from.Epoch).Facts().Proxy, l.instance.Version.ManagedProxy()
	if of.Profile != "" && of.Owner != next.Owner {
		return fmt.Errorf("the running proxy stays: it is %s, and the profile's present version is %s, which can take nothing over from it; make the pod anew", of.Owner.Words(), next.Owner.Words())
	}
	return nil
}

// shareListeners readies a sandbox for a proxy that listens beside its predecessor (nil: there is none). The error says why it cannot. A kernel
// that cannot move connections is no reason not to start: unmoved says so.
func shareListeners(ctx context.Context, asker Asker, s podnet.Sandbox, from *sidecar.Container) (unmoved string, err error) {
	switch {
	case from != nil && from.HotRestart != nil:
		return "", errors.New("the running proxy stays: an Envoy with hot restart cannot be told by a signal to close its listeners; make the pod anew")
	case from != nil && from.StopSignal == "":
		return "", errReplace
	}
	if why := asker.Move(ctx, s); why != nil {
		unmoved = "an upgrade may reset connections that the old proxy has not accepted yet: " + why.Error()
	}
	return unmoved, nil
}

// spec returns the proxy's container, which sees its files in a home.
func (l launch) spec(h home.Home) sidecar.Spec { return l.instance.Spec(h.Mounts(l.instance)) }

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
