package sidecars

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
)

// observe reads the sandbox: its pod's choice, its containers, and its notes. exits are ends of processes of which no reconcile has learned.
func observe(ctx context.Context, m *Manager, s podnet.Sandbox, mem memory, exits map[string]processExit) (observed, memory, error) {
	out := observed{key: s.Key(), sandbox: s, home: m.Homes.Of(s.Key()), proxies: mem.proxies}
	var err error
	if out.choice, err = m.Cluster.Choice(ctx, s); err != nil {
		return out, mem, fmt.Errorf("read what the pod has chosen: %w", err)
	}
	if mem, err = relist(ctx, m.Runtime, out.key, mem, len(exits) > 0); err != nil {
		return out, mem, err
	}
	for _, c := range mem.list.containers {
		if c.Sandbox == out.key.Sandbox {
			out.containers = append(out.containers, c)
		}
	}
	slices.SortFunc(out.containers, func(a, b sidecar.Container) int { return cmp.Compare(a.Epoch, b.Epoch) })
	out.notes, out.versions = out.home.Notes(), versionsOf(m, out.choice.Profile)
	return out, mem, nil
}

// relist lists a pod's containers anew, unless the last list will do. Epochs of the pod's other sandboxes are not used again: a container's name in
// the runtime consists of the pod's UID and the epoch.
func relist(ctx context.Context, runtime Runtime, key podnet.Key, mem memory, exits bool) (memory, error) {
	unreported := slices.ContainsFunc(mem.list.containers, func(c sidecar.Container) bool { return mem.proxies[c.ID].exit.unreported })
	if exits || unreported || !mem.list.waits || time.Since(mem.list.at) >= listFor {
		all, err := runtime.List(ctx, key.PodUID)
		mem.list = listed{containers: all, at: time.Now()}
		if err != nil {
			return mem, err
		}
	}
	for _, c := range mem.list.containers {
		mem.epoch = max(mem.epoch, c.Epoch+1)
	}
	return mem, nil
}

// readEnds reads how proxies have ended. hung reports whether some hang.
func readEnds(ctx context.Context, m *Manager, o observed, last failures, hung bool) (out ends) {
	out.of = map[string]ended{}
	if last.unreported != "" {
		out.earlier.end, out.earlier.err = m.Runtime.End(ctx, last.unreported)
		last.logPath = cmp.Or(out.earlier.end.LogPath, last.logPath)
	}
	if last.logPath != "" {
		out.words = lastWords(last.logPath)
	}
	var unexpected []string
	for id, p := range o.proxies {
		if c := o.container(id); (c == nil || c.State == sidecar.Exited) && !o.isExpected(p) {
			unexpected = append(unexpected, id)
		}
	}
	if !hung && len(unexpected) == 0 {
		return out
	}
	if out.isNoFailure, out.finished = isNoFailure(ctx, m, o); out.isNoFailure {
		return out
	}
	for _, id := range unexpected {
		one := ended{taken: takenBy(ctx, m.Asker, o, o.proxies[id])}
		if o.container(id) != nil {
			one.end, one.err = m.Runtime.End(ctx, id)
			one.words = lastWords(one.end.LogPath)
		}
		out.of[id] = one
	}
	return out
}

// isNoFailure reports whether the end of a proxy is no failure. It notes that the application has ended, if that is why.
func isNoFailure(ctx context.Context, m *Manager, o observed) (is, finished bool) {
	if o.choice.Ending || o.notes.Finished(time.Now()) {
		return true, false
	}
	if ready, err := m.Runtime.Ready(ctx, o.key.Sandbox); err == nil && !ready {
		return true, false
	}
	// containerd 1.7 does not say that the application has ended, and ends the proxies with their sandbox.
	over, err := isOver(ctx, m.Runtime, m.Cluster, o.sandbox, sidecar.Application{})
	finished = err == nil && over && o.home.NoteFinished() == nil
	return finished, finished
}

// takenBy returns which other process listens on a port of a proxy that ended before it was ready, or "".
func takenBy(ctx context.Context, asker Asker, o observed, p proxy) string {
	if o.choice.Profile == nil || p.probes.WasReady {
		return ""
	}
	if err := asker.Ask(ctx, o.sandbox, o.madeFrom(p.hash), p.epoch, probe.Ready); errors.Is(err, ErrPortTaken) {
		return err.Error() + "; "
	}
	return ""
}

// orphansThatServe returns the epochs of Envoys that have lost the proxy that they take over from, and have taken over. An earlier answer does not say
// so: they are asked now, once, as it is noted or they are ended then.
func orphansThatServe(ctx context.Context, asker Asker, o observed) (epochs []uint32) {
	for _, c := range o.containers {
		if o.isOrphan(c) && asker.Serves(ctx, o.sandbox, c.Epoch) == nil {
			epochs = append(epochs, c.Epoch)
		}
	}
	return epochs
}

// nobodyListens reports whether nobody listens for a pod whose Envoy has lost its successor. The Envoy does not say whether the other one took its
// listeners before it ended.
func nobodyListens(ctx context.Context, asker Asker, o observed) bool {
	return o.choice.Profile != nil && slices.ContainsFunc(o.containers, o.lostSuccessor) &&
		errors.Is(asker.Listens(ctx, o.sandbox, o.choice.Profile), ErrNobodyListens)
}

// tailBytes is how much of the end of a log is read.
const tailBytes = 8 << 10

// lastWords returns the last lines of a proxy's log, as far as the runtime has written them.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil { // also if nobody knows the path
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(info.Size()-tailBytes, 0), tailBytes))
	if err != nil {
		return ""
	}
	var lines []string
	for line := range bytes.Lines(text) {
		if words, ok := sidecar.LogText(strings.TrimSpace(string(line))); ok {
			lines = append(lines, words)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "; its last words: " + printable.Words(strings.Join(lines, " / "))
}

// markOutdated gives another hash to the proxies that have to be replaced because their secrets have changed, or their pod wishes it.
func markOutdated(o observed) observed {
	o.containers = slices.Clone(o.containers)
	for i, c := range o.containers {
		if o.notes.Has(home.Rotated, c.Epoch) || o.choice.Restart != "" && o.choice.Restart != c.Restart {
			o.containers[i].Hash += outdatedHash
		}
	}
	return o
}
