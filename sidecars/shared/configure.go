package shared

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/sidecars/profile"
)

// configure brings the proxy's configuration to what its pods and its profile ask for.
func (r *round) configure(ctx context.Context) error {
	wanted := r.wanted
	var applied *profile.Version // of the configuration in force, or of the proxy's first
	if r.last != nil {
		var err error
		if applied, err = r.profileOf(r.last); err != nil {
			log.FromContext(ctx).Error(err, "configuration of the shared proxy not known")
		}
	}
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
	return errors.Join(err, r.dir.prune(r.state))
}

// wrongGID says that a proxy does not run as the profile's group, by which the rules of pods know it, and what to do, or returns "".
func wrongGID(p *proxy, profile *profile.Version) string {
	if profile == nil || !p.answered || p.gid == profile.Spec.RunAsGroup {
		return ""
	}
	return fmt.Sprintf("the shared proxy runs as group %d, and the ProxyProfile %s has runAsGroup %d, so the pods' rules would take what it sends for the application's: set runAsGroup of the profile in the chart's value proxies.shared",
		p.gid, profile.Name, profile.Spec.RunAsGroup)
}

// testPorts refuses pods that are to join while a process of theirs has one of the proxy's ports: the proxy could not listen there, or not alone.
func (r *round) testPorts(ctx context.Context, p *plan) error {
	var free []member
	for _, m := range p.suspects {
		now := podOf(r.pods, m.key())
		if now == nil || now.before != nil {
			free = append(free, m)
			continue
		}
		err := r.Sandboxes.Free(ctx, m.Sandbox, p.profile.Ports())
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

// portsAgain is the time between two looks at the ports of pods whose proxy does not run.
const portsAgain = 5 * time.Second

// shrink rewrites what a proxy that does not run will start with: without the pods that are gone, and those in which another process has taken
// its ports. Each of them would keep it from starting. Nobody is added, since nothing can be checked.
func (r *round) shrink(ctx context.Context) error {
	if r.last == nil {
		return nil
	}
	p, err := r.profileOf(r.last)
	if err != nil {
		return err
	}
	look := time.Since(r.checked) > portsAgain
	if look {
		r.checked = time.Now()
	}
	var keep []member
	for _, m := range r.last.Members {
		now := podOf(r.pods, m.key())
		if now == nil || !now.stay {
			continue
		}
		if look {
			if err := r.Sandboxes.Free(ctx, now.sandbox, p.Ports()); isTaken(err) {
				r.refuse(now, err.Error())
				continue
			}
		}
		keep = append(keep, m)
	}
	if len(keep) == len(r.last.Members) {
		return nil
	}
	rec, files, err := render(p, r.Node, keep)
	if err != nil {
		return err
	}
	if rec.Dir, err = r.dir.write(files, p.Spec.RunAsGroup); err != nil {
		return err
	}
	if err := r.swap(rec); err != nil {
		return err
	}
	return r.dir.prune(r.state)
}
