package shared

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
)

type podNow struct {
	sandbox podnet.Sandbox
	choice  sidecars.Choice
	verdict
	// before is the pod in the last configuration, nil if it is not there. now is what is to be there instead; nil if nothing changes, or the
	// pod was not read yet.
	before, now *member
	// gone reports whether the API server does not know the pod.
	gone bool
	// tries is how often it was refused, and refusedFor why the last time, or "". The latter is known in the end of a round.
	tries      int
	refusedFor string
	// told is up to where the pod's changes are known: see followed.
	told int
}

type verdict struct {
	// stay keeps a pod in the configuration, and join lets it in or lets its changes in.
	stay, join bool
	// refused is what the pod's owner has to change first, waits what has to happen by itself; both may be "".
	refused, waits string
}

func (p *podNow) key() podnet.Key { return p.sandbox.Key() }

func podOf(pods []*podNow, key podnet.Key) *podNow {
	return find(pods, func(p *podNow) bool { return p.key() == key })
}

func podWith(pods []*podNow, uid string) *podNow {
	return find(pods, func(p *podNow) bool { return p.sandbox.UID == uid })
}

func find(pods []*podNow, is func(*podNow) bool) *podNow {
	if i := slices.IndexFunc(pods, is); i >= 0 {
		return pods[i]
	}
	return nil
}

// changed reports whether the pod is to join, or its new data is.
func (p *podNow) changed() bool { return p.join && p.now != nil }

type plan struct {
	profile *profile.Version
	// base are the members that were served like this before. suspects are to blame if the proxy does not take the configuration.
	base, suspects []member
	// whole reports whether the profile itself is new to the proxy: then it may be to blame as well.
	whole bool
}

// plans returns the configuration to try next.
//
//   - If it is not known what is in force (known is false), no pod joins: the members of the last configuration are tried, or none. After that
//     the pods that join are all that is new.
//   - A new version of the profile is tried with the served pods, and no pod joins with it.
//   - Otherwise pods join, and change, and leave; at most batch join or change at once, those first that were refused least.
func plans(wanted, inForce *profile.Version, pods []*podNow, known bool, batch int) plan {
	profile := inForce
	if wanted != nil {
		profile = wanted
	}
	out := plan{profile: profile}
	var stay []member
	for _, p := range pods {
		if p.stay && p.before != nil {
			stay = append(stay, *p.before)
		}
	}
	switch {
	case !known:
		out.whole, out.base = true, stay
	case inForce == nil || wanted != nil && wanted.Hash != inForce.Hash:
		out.whole, out.suspects = true, stay
	default:
		out.base, out.suspects = stay, joining(pods, batch)
	}
	return out
}

// joining returns the pods that join or change now.
func joining(pods []*podNow, batch int) (out []member) {
	var all []*podNow
	for _, p := range pods {
		if p.changed() {
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b *podNow) int { return cmp.Compare(a.tries, b.tries) })
	if batch > 0 && len(all) > batch {
		all = all[:batch]
	}
	for _, p := range all {
		out = append(out, *p.now)
	}
	return out
}

// with returns members with others added. Of two that are the same sandbox the later one counts.
func with(members, others []member) []member {
	out := slices.DeleteFunc(slices.Clone(members), func(m member) bool {
		return slices.ContainsFunc(others, func(o member) bool { return o.key() == m.key() })
	})
	return append(out, others...)
}

// ordered returns members in the order in which templates see them.
func ordered(members []member) []member {
	out := slices.Clone(members)
	slices.SortFunc(out, func(a, b member) int {
		return cmp.Or(
			cmp.Compare(a.Sandbox.Namespace, b.Sandbox.Namespace), cmp.Compare(a.Sandbox.Name, b.Sandbox.Name),
			cmp.Compare(a.Sandbox.UID, b.Sandbox.UID), cmp.Compare(a.Sandbox.ID, b.Sandbox.ID),
		)
	})
	return out
}

const versionBytes = 8

// render returns a configuration for members, which has no directory yet, and its files. The version is a hash of them, in which the version itself
// is zeros: equal files have equal versions, whichever agent has rendered them.
func render(p *profile.Version, node string, members []member) (rec *record, files map[string]string, err error) {
	rec = &record{Hash: p.Hash, Spec: p.Spec, Members: ordered(members)}
	data := profile.SharedData{Node: node, Version: strings.Repeat("0", 2*versionBytes)}
	for _, m := range rec.Members {
		data.Pods = append(data.Pods, m.Data)
	}
	if files, err = profile.RenderShared(p, data); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(files)
	if err != nil {
		return nil, nil, fmt.Errorf("sum up files: %w", err)
	}
	sum := sha256.Sum256(text)
	rec.Version = hex.EncodeToString(sum[:versionBytes])
	data.Version = rec.Version
	files, err = profile.RenderShared(p, data)
	return rec, files, err
}

// whyNot says to a pod's owner why its data could not be rendered.
func whyNot(err error, others int) string {
	if errors.Is(err, profile.ErrTooLarge) {
		return fmt.Sprintf("the files for %d pods leave no room for this one: %v", others, err)
	}
	return err.Error()
}
