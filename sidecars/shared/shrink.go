package shared

import (
	"context"
	"time"
)

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
		now := r.pod(m.key())
		if now == nil || !now.stay {
			continue
		}
		if look {
			if err := r.free(ctx, member{Sandbox: now.sandbox}, p.Ports()); isTaken(err) {
				r.refuse(now, err.Error())
				continue
			}
		}
		keep = append(keep, m)
	}
	if len(keep) == len(r.last.Members) {
		return nil
	}
	content, err := render(p, r.Node, keep)
	if err != nil {
		return err
	}
	rec := &record{Version: content.version, Hash: r.last.Hash, Spec: r.last.Spec, Members: keep}
	if rec.Dir, err = r.dir.write(content.files, p.Spec.RunAsGroup); err != nil {
		return err
	}
	if err := r.swap(rec); err != nil {
		return err
	}
	return r.prune()
}
