package sidecars

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

// fakeProfile is a ProxyProfile.
type fakeProfile struct {
	Name       string
	Generation int64
	Spec       profile.Spec
}

// compile copies what tests change in place.
func (p fakeProfile) compile() (*profile.Version, error) {
	spec := p.Spec
	spec.Files, spec.Secrets = slices.Clone(spec.Files), slices.Clone(spec.Secrets)
	if l := spec.Liveness; l != nil {
		copied := *l
		spec.Liveness = &copied
	}
	return profile.New(p.Name, spec)
}

// What the fake node is as the cluster: its pods, the profile, and what was reported.

func (n *fakeNode) CurrentPod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	pod := thePod()
	pod.UID = types.UID(s.UID)
	n.mu.Lock()
	err, hangs := n.failures["pod"], n.apiHangs
	n.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.meshed.asked++
	pod.Labels, pod.Annotations = n.meshed.labels, n.meshed.annotations
	if hostUsers := !n.ownUsers; n.ownUsers {
		pod.Spec.HostUsers = &hostUsers
	}
	return pod, nil
}

func (n *fakeNode) Choice(_ context.Context, s podnet.Sandbox) (Choice, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return Choice{}, podnet.ErrNoPod
	}
	object, chosen := &n.profile, n.chosen
	if other := n.choices[s.UID]; other != nil {
		object, chosen = other, other.Name
	}
	out := Choice{Name: chosen, Hash: object.Spec.Hash(), Ending: n.ending, Finished: n.finished, Restart: n.wish, Held: n.held}
	if chosen == "" {
		return Choice{OptedOut: true}, n.failures["choice"]
	}
	if chosen != object.Name {
		out.Hash, out.Refusal = "", "there is no profile "+chosen
		return out, n.failures["choice"]
	}
	if out.Refusal = n.refusal; out.Refusal != "" {
		return out, nil
	}
	var err error
	out.Profile, err = object.compile()
	if n.spaces != nil && err == nil {
		out.Namespace, out.Restart = n.spaces, Wish(profile.Wish(out.Profile, n.wish, n.spaces))
	}
	out.Later = n.later && n.rules[s.Key()] == nil
	return out, errors.Join(err, n.failures["choice"])
}

func (n *fakeNode) Report(s podnet.Sandbox, status Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said[s.UID] = status
}

// sum counts what is reported, as the profile's status does. n.mu is held.
func (n *fakeNode) sum() (out rollout.NodeCount) {
	hash := n.profile.Spec.Hash()
	for _, s := range n.said {
		out.Pods++
		switch {
		case s.FailedHash == hash:
			out.Failed++
			out.Paused = out.Paused || s.Paused
		case s.Ready && s.Hash == hash:
			out.Upgraded++
		}
	}
	return out
}

func (n *fakeNode) Retract(podUID string) { n.Forget(podUID) }

func (n *fakeNode) Forget(podUID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.said, podUID)
}

// follows reports whether a sandbox is looked after.
func follows(m *Manager, key podnet.Key) bool {
	_, followed := m.followed.find(key)
	return followed
}
