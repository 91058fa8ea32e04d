package shared

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"istio-pod-network-controller/sidecars"
)

// trial is a plan that is carried out.
type trial struct {
	*round
	plan
	// passed is the last configuration that has passed the test.
	passed candidate
	// refused reports whether the first configuration failed the test. result is what became of the configuration that was put into force, or "".
	refused bool
	result  Result
}

// candidate is a configuration that can be put into force.
type candidate struct {
	members []member
	version string
	dir     string // "" for the configuration that the proxy has
}

// accept finds a configuration that the proxy accepts, and leaves it in passed. ok is false if nothing is to be put into force.
func (t *trial) accept(ctx context.Context) (ok bool, err error) {
	why, err := t.test(ctx, with(t.base, t.suspects))
	switch {
	case err != nil:
		return false, err
	case why == "":
		return true, nil
	case t.names.vanished(ctx, with(t.base, t.suspects)):
		t.wakeAt(t.now)
		return false, nil
	}
	t.refused = true
	if len(t.suspects) > 0 {
		if why, err = t.test(ctx, t.base); err != nil {
			return false, err
		}
	} else if t.whole && len(t.base) > 0 { // without a configuration in force, each member may be to blame
		t.suspects, t.base = t.base, nil
		return t.accept(ctx)
	}
	switch {
	case len(t.base) == 0 && why != "": // said without any pod, so it has no pod's data in it
		t.blameProfile(ctx, why, why)
		return false, nil
	case why != "":
		t.blameProfile(ctx, "the proxy refuses what it serves already: the agent's log has its words", why)
		return false, nil
	}
	return t.search(ctx)
}

// search finds out which of the suspects the proxy accepts with the others.
func (t *trial) search(ctx context.Context) (ok bool, err error) {
	s := &search{test: t.test, refused: map[sidecars.Key]string{}}
	members, err := s.split(ctx, t.base, t.suspects)
	tooMany := errors.Is(err, errTests)
	if tooMany || errors.Is(err, context.DeadlineExceeded) {
		t.batch = max(1, len(t.suspects)/2)
		t.wakeAt(t.now.Add(reloadPause))
	}
	switch {
	case err != nil && !tooMany:
		return false, err
	case tooMany && t.whole:
		t.blameProfile(ctx, "too many of its pods are refused with it", "")
		return false, nil
	}
	if t.whole && len(s.refused) >= len(members) {
		t.blameForMany(ctx, s.refused)
		return false, nil
	}
	for key, why := range s.refused {
		if p := podOf(t.pods, key); p != nil {
			t.refuse(p, "the proxy does not take the pod's configuration: "+why)
		}
	}
	t.suspects = slices.DeleteFunc(slices.Clone(t.suspects), func(m member) bool { return !has(members, m) })
	return len(t.suspects) > 0 || len(t.base) < len(t.last.members()), nil
}

// has reports whether a member is among others, as it is.
func has(members []member, m member) bool {
	return slices.ContainsFunc(members, func(o member) bool { return reflect.DeepEqual(o, m) })
}

// test renders a configuration, and has the proxy check it. why is "" if it can be used.
func (t *trial) test(ctx context.Context, members []member) (why string, err error) {
	content, err := render(t.profile, t.Node, members)
	if err != nil {
		return whyNot(err, len(members)-1), nil // a fault of the profile or the pods
	}
	found := candidate{members: members, version: content.version}
	if t.last != nil && content.version == t.last.Version {
		t.passed = found
		return "", nil
	}
	if found.dir, err = t.dir.write(content.files, t.profile.Spec.RunAsGroup); err != nil {
		return "", err
	}
	checking, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	output, ok, err := t.Proxies.Check(checking, t.seen.id, t.profile.Spec.Shared.Check)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case checking.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("its check of the files did not end within %s", checkTimeout), nil
	case err != nil:
		return "", fmt.Errorf("have the shared proxy check its files: %w", err)
	case !ok:
		return bounded("it refuses the files: " + output), nil
	}
	t.passed = found
	return "", nil
}

// blameForMany blames the profile for the refusal of most of its pods. Each pod's owner sees the fault, so it has no words about the pod of
// another one.
func (t *trial) blameForMany(ctx context.Context, refused map[sidecars.Key]string) {
	for _, why := range refused {
		fault := fmt.Sprintf("%d of %d pods are refused with it: the agent's log has the proxy's words", len(refused), len(t.suspects))
		if len(t.suspects) == 1 {
			fault = why
		}
		t.blameProfile(ctx, fault, why)
		return
	}
}

// blameProfile notes that the profile, and not a pod, is to blame: for its new version (whole), or for what is in force. detail is for the log.
func (t *trial) blameProfile(ctx context.Context, why, detail string) {
	t.tell(ctx, bounded("the ProxyProfile "+t.name+" is not usable for the shared proxy: "+why), detail)
	if t.whole {
		t.bad.hash = t.profile.Hash
		t.bad.note(t.now, firstPause, t.fault)
		t.wakeAt(t.bad.until)
		return
	}
	t.wakeAt(t.now.Add(errorPause))
}

// count notes what became of the trial. err is why it has ended early, or nil.
func (t *trial) count(ctx context.Context, err error) {
	if t.result == "" && err != nil && !errors.Is(ctx.Err(), context.Canceled) { // the agent ends: the next one goes on
		t.result = Failed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused {
		t.figures.Reloads[Refused]++
	}
	if t.result != "" {
		t.figures.Reloads[t.result]++
	}
}
