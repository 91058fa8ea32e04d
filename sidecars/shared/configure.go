package shared

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/sidecars"
)

const (
	// checkTimeout bounds one check by the proxy, and portTimeout one look at a pod's ports.
	checkTimeout = 10 * time.Second
	portTimeout  = 2 * time.Second
)

// configure brings the proxy's configuration to what its pods and its profile ask for.
func (r *round) configure(ctx context.Context) error {
	applied, wanted := r.applied(ctx), r.wanted
	if r.inForce != nil && applied != nil && r.bad.hash == applied.Hash {
		r.bad = badProfile{} // it has been taken after all
	}
	if wanted != nil && r.bad.hash == wanted.Hash {
		r.fault = r.bad.why
		if !r.bad.over(r.now) {
			r.wakeAt(r.bad.until)
			wanted = nil
		}
		if wanted == nil && r.inForce == nil {
			return nil
		}
	}
	p := plans(wanted, applied, r.pods, r.inForce != nil, r.batch)
	if why := wrongGID(&r.proxy, p.profile); why != "" {
		r.foreign = true
		r.tell(ctx, why, "")
		return nil
	}
	if p.profile == nil || !p.whole && len(p.suspects) == 0 && len(p.base) == len(r.inForce.Members) {
		return nil
	}
	if due := r.reloaded.Add(reloadPause); time.Now().Before(due) {
		r.wakeAt(due)
		return nil
	}
	if err := r.testPorts(ctx, &p); err != nil {
		return err
	}
	t := &trial{round: r, plan: p}
	ok, err := t.accept(ctx)
	if err == nil && ok {
		err = t.apply(ctx)
	}
	t.count(ctx, err)
	return errors.Join(err, r.prune())
}

// wrongGID says that a proxy does not run as the profile's group, by which the rules of pods know it, and what to do, or returns "".
func wrongGID(p *proxy, profile *sidecars.Profile) string {
	if profile == nil || !p.answered || p.gid == profile.Spec.RunAsGroup {
		return ""
	}
	return fmt.Sprintf("the shared proxy runs as group %d, and the SidecarProfile %s has runAsGroup %d, so the pods' rules would take what it sends for the application's: set runAsGroup of the profile in the chart's value sidecars.shared",
		p.gid, profile.Name, profile.Spec.RunAsGroup)
}

// applied returns the profile of the configuration in force, or of the one that the proxy starts with, or nil.
func (r *round) applied(ctx context.Context) *sidecars.Profile {
	if r.last == nil {
		return nil
	}
	p, err := r.profileOf(r.last)
	if err != nil {
		log.FromContext(ctx).Error(err, "configuration of the shared proxy not known")
	}
	return p
}

// prune removes configurations that nobody needs.
func (r *round) prune() error {
	var keep []string
	for _, one := range r.state.records() {
		keep = append(keep, one.Dir)
	}
	return r.dir.prune(keep...)
}

// testPorts refuses pods that are to join while a process of theirs has one of the proxy's ports: the proxy could not listen there, or not alone.
func (r *round) testPorts(ctx context.Context, p *plan) error {
	var free []member
	for _, m := range p.suspects {
		now := r.pod(m.key())
		if now == nil || now.before != nil {
			free = append(free, m)
			continue
		}
		err := r.free(ctx, m, p.profile.Ports())
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			free = append(free, m)
		default:
			r.refuse(now, err.Error())
		}
	}
	p.suspects = free
	return nil
}

func (r *round) free(ctx context.Context, m member, ports []uint16) error {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	return r.Sandboxes.Free(ctx, m.Sandbox, ports)
}

// pod returns one of the round's pods, or nil.
func (r *round) pod(key sidecars.Key) *podNow {
	for _, p := range r.pods {
		if p.key() == key {
			return p
		}
	}
	return nil
}

// trial is a plan that is carried out.
type trial struct {
	*round
	plan
	// passed is the last configuration that has passed the test.
	passed candidate
	// refused reports whether the first configuration failed the test. result is what became of the one that was put into force, or "".
	refused bool
	result  Result
}

// candidate is a configuration that can be put into force.
type candidate struct {
	members []member
	version string
	dir     string // "" if it is the one that the proxy has
}

// accept finds a configuration that the proxy accepts, and leaves it in passed. ok is false if nothing is to be put into force.
func (t *trial) accept(ctx context.Context) (ok bool, err error) {
	why, err := t.test(ctx, with(t.base, t.suspects))
	switch {
	case err != nil:
		return false, err
	case why == "":
		return true, nil
	case t.dropLost(ctx):
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
	case len(t.base) == 0 && why != "": // said without any pod, so nobody's data is in it
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
		t.batch = max(1, len(t.suspects)/2) //nolint:mnd // fewer at once
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
		if p := t.pod(key); p != nil {
			t.refuse(p, "the proxy does not take the pod's configuration: "+why)
		}
	}
	t.suspects = slices.DeleteFunc(slices.Clone(t.suspects), func(m member) bool { return !has(members, m) })
	return len(t.suspects) > 0 || len(t.base) < len(t.lastMembers()), nil
}

// has reports whether a member is among others, as it is.
func has(members []member, m member) bool {
	return slices.ContainsFunc(members, func(o member) bool { return reflect.DeepEqual(o, m) })
}

func (r *round) lastMembers() []member {
	if r.last == nil {
		return nil
	}
	return r.last.Members
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

// dropLost reports whether the network namespace of a member has lost its name since the round began. The next round takes the sandbox of such
// a pod for ended.
func (t *trial) dropLost(ctx context.Context) (lost bool) {
	for _, m := range with(t.base, t.suspects) {
		name, err := t.Sandboxes.Name(ctx, m.Sandbox)
		if ctx.Err() == nil && (err != nil || name != m.Data.NetNS) && !t.lost[m.key()] {
			t.lost[m.key()], lost = true, true
			delete(t.names, m.key())
		}
	}
	return lost
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
	t.tell(ctx, bounded("the SidecarProfile "+t.name+" is not usable for the shared proxy: "+why), detail)
	if t.whole {
		t.bad.hash = t.profile.Hash
		t.bad.note(t.now, firstPause, t.fault)
		t.wakeAt(t.bad.until)
		return
	}
	t.wakeAt(t.now.Add(errorPause))
}

// tell notes why the profile's present version is not in force, and logs it once.
func (r *round) tell(ctx context.Context, fault, detail string) {
	if r.fault = fault; fault != r.told {
		r.told = fault
		log.FromContext(ctx).Info("configuration of the shared proxy refused", "reason", fault, "details", bounded(detail))
	}
}
