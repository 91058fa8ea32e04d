package shared

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
)

// checkTimeout bounds one check by the proxy.
const checkTimeout = 10 * time.Second

type trial struct {
	*round
	plan
	// passed is the last configuration that has passed the test.
	passed *record
	// refused reports whether the first configuration failed the test. result is what became of the configuration that was put into force, or "".
	refused bool
	result  Result
	// spoke reports whether the proxy has refused files with several pods. Its words may be about any of them: only the log has them.
	spoke bool
}

const refusedBeside = "the proxy takes the pod's configuration alone, and not beside other pods: the agent's log has its words"

// accept finds a configuration that the proxy accepts, and leaves it in passed. ok is false if nothing is to be put into force:
//
//   - All pods are checked at once. Usually that is all.
//   - If they are refused, so may be the pods that are served already, or the files without any pod: then the profile is to blame.
//   - Otherwise each pod that is new, or has a new version, is checked alone. Refused ones stay out, and the others are checked at once.
//   - If these are refused, too, what is in force stays, and the next round tries half as many.
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
	if t.whole && t.inForce == nil { // nothing is in force that could stay: each pod may be to blame
		t.suspects, t.base = t.base, nil
	}
	without := why
	if len(t.suspects) > 0 {
		if without, err = t.test(ctx, t.base); err != nil {
			return false, err
		}
	}
	switch {
	case without != "" && len(t.base) == 0: // no pod's data is in these words
		t.blameProfile(ctx, without, without)
		return false, nil
	case without != "":
		t.blameProfile(ctx, "the proxy refuses what it serves already: the agent's log has its words", without)
		return false, nil
	}
	return t.acceptSome(ctx, why)
}

// acceptSome leaves out suspects that are refused alone. why is what the proxy has said of all. If half of the pods are refused with a new
// version, that is to blame.
func (t *trial) acceptSome(ctx context.Context, why string) (ok bool, err error) {
	if !t.whole { // the rest may join in the next round
		t.suspects = t.suspects[:min(len(t.suspects), maxAlone)]
	}
	fine, refused, err := t.checkAlone(ctx, t.suspects)
	if err != nil {
		return false, err
	}
	left := len(fine) > 0 || !t.whole && len(t.base) < len(t.last.members())
	if left && len(refused) > 0 {
		why, err = t.test(ctx, with(t.base, fine))
	}
	switch {
	case err != nil:
		return false, err
	case t.whole && len(t.pods) == 1 && len(t.suspects) == 1:
		t.blameProfile(ctx, why, why)
		return false, nil
	case t.whole && (why != "" || len(refused) >= len(fine)): // each pod's owner reads this, so no words about another one's are in it
		t.blameProfile(ctx, fmt.Sprintf("%d of %d pods are refused with it: the agent's log has the proxy's words", len(refused), len(t.suspects)), why)
		return false, nil
	}
	for key, why := range refused {
		if p := podOf(t.pods, key); p != nil {
			t.refuse(p, "the proxy does not take the pod's configuration: "+why)
		}
	}
	t.suspects = fine
	if left && why != "" {
		if t.spoke {
			log.FromContext(ctx).Info("configuration of the shared proxy refused", "reason", refusedBeside, "details", why)
			why = refusedBeside
		}
		t.narrow(ctx, why, firstPause, lastPause)
	}
	return left && why == "", nil
}

// maxAlone bounds how many pods that join one round checks alone: each check may start a program in the proxy's container.
const maxAlone = 24

// checkAlone checks each member without any other one.
func (t *trial) checkAlone(ctx context.Context, members []member) (fine []member, refused map[podnet.Key]string, err error) {
	refused = map[podnet.Key]string{}
	for _, m := range members {
		why, err := t.test(ctx, []member{m})
		switch {
		case err != nil:
			return nil, nil, err
		case why == "":
			fine = append(fine, m)
		default:
			refused[m.key()] = why
		}
	}
	return fine, refused, nil
}

// narrow notes that the proxy does not take suspects, each of which may be to blame: half of them are tried next, and one alone waits.
func (t *trial) narrow(ctx context.Context, why string, first, last time.Duration) {
	t.wakeAt(time.Now().Add(reloadPause))
	switch n := len(t.suspects); {
	case t.whole || n == 0:
		t.blameProfile(ctx, why, why)
	case n == 1:
		if p := podOf(t.pods, t.suspects[0].key()); p != nil {
			t.keepOut(p, why, first, last)
		}
	default:
		t.batch = n / 2
	}
}

// test renders a configuration, and has the proxy check it. why is "" if it can be used.
func (t *trial) test(ctx context.Context, members []member) (why string, err error) {
	rec, files, err := render(t.profile, t.Node, members)
	if err != nil {
		return whyNot(err, len(members)-1), nil // a fault of the profile or the pods
	}
	if t.last != nil && rec.Version == t.last.Version {
		t.passed = rec
		return "", nil
	}
	if rec.Dir, err = t.dir.write(files, t.profile.Spec.RunAsGroup); err != nil {
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
		t.spoke = t.spoke || len(members) > 1
		return printable.Words("it refuses the files: " + output), nil
	}
	t.passed = rec
	return "", nil
}

// blameProfile notes that the profile, and not a pod, is to blame: for its new version (whole), or for what is in force. detail is for the log.
func (t *trial) blameProfile(ctx context.Context, why, detail string) {
	t.tell(ctx, printable.Words("the ProxyProfile "+t.name+" is not usable for the shared proxy: "+why), detail)
	if t.whole {
		t.bad.hash = t.profile.Hash
		t.bad.note(t.now, firstPause, lastPause, t.fault)
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
