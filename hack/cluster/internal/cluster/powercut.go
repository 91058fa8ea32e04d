package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/cgroup"
	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/nodefs"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// PowerCut ends all daemons and the whole node as a power cut does, and leaves a node that is about to boot:
//   - every process is suspended, then killed: none sees another one end, or cleans up,
//   - what a machine holds in memory goes: namespaces, mounts, links, cgroups, /run,
//   - what a machine holds on a disk stays: etcd, images, containers, the kubelet's files, /etc, /opt, /var/lib, /var/log, the keys.
//
// Files keep what was written but not synced, which a real power cut may lose. The control plane's network namespace stays too, with
// what a test runs in it.
func (c *Cluster) PowerCut() error {
	return c.withState(func(s *state.State) error {
		r := &run{cluster: c, state: s, began: time.Now()}
		var disk *os.File
		err := space.Do(s.Node.PID, space.Node, func() (err error) { disk, err = nodefs.Disk(c.scratch()); return err })
		if err != nil {
			return err
		}
		defer disk.Close()
		hierarchies, err := hierarchies()
		if err != nil {
			return err
		}
		s.Ready = false
		if err := r.save(); err != nil {
			return err
		}
		number, err := c.killAtOnce(s, hierarchies)
		if err != nil {
			return err
		}
		r.say(fmt.Sprintf("%d processes killed", number))
		if err := r.emptyNode(hierarchies, disk); err != nil {
			return err
		}
		r.say("node is ready to boot")
		return nil
	})
}

// Boot starts all daemons after PowerCut, and returns when the node has said that it is ready. If it fails, the logs are kept, and the rest, to
// be looked at until `kc down` or `kc up`.
func (c *Cluster) Boot(ctx context.Context) error {
	return c.withState(func(s *state.State) error {
		for name, process := range s.Daemons {
			if process.Alive() {
				return fmt.Errorf("%s runs: a boot follows `kc powercut`", name)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		r := &run{cluster: c, state: s, began: time.Now(), ended: make(chan ending, 16)}
		err := r.do(ctx, step{"container runtime and API server are ready", r.startFirst}, step{"node is ready", r.startRest})
		if err != nil {
			return errors.Join(fmt.Errorf("boot the node: %w", err), c.keepLogs())
		}
		return nil
	})
}

// killAtOnce suspends all processes before it kills the first one, and returns how many there were.
func (c *Cluster) killAtOnce(s *state.State, hierarchies []cgroup.Hierarchy) (int, error) {
	look := func() ([]int, error) {
		// Only the control plane's daemons in its namespace: a test runs there too.
		pids, err := c.found(s, hierarchies, map[string]daemon.Process{s.Namespaces["node"]: s.Node})
		for _, process := range s.Daemons {
			if process.Alive() {
				pids = append(pids, process.PID)
			}
		}
		slices.Sort(pids)
		return slices.Compact(pids), err
	}
	number, err := suspendAll(look)
	if err != nil {
		return 0, err
	}
	return number, killAll(look)
}

// suspendAll repeats until a look finds nobody new, and nobody who still runs: a fork that has begun ends although its process is to be
// suspended, and a process must get a processor to be suspended on.
func suspendAll(look func() ([]int, error)) (int, error) {
	suspended := map[int]bool{}
	for {
		runs := slices.ContainsFunc(slices.Collect(maps.Keys(suspended)), daemon.Runs)
		pids, err := look()
		if err != nil {
			return 0, err
		}
		before := len(suspended)
		for _, pid := range pids {
			if suspended[pid] {
				continue
			}
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
				return 0, fmt.Errorf("suspend process %d: %w", pid, err)
			}
			suspended[pid] = true
		}
		if len(suspended) == before && !runs {
			return before, nil
		}
	}
}

// emptyNode replaces the node's namespaces and cgroups by new ones. Of the old node there is only the disk.
func (r *run) emptyNode(hierarchies []cgroup.Hierarchy, disk *os.File) error {
	c := r.cluster
	if err := r.state.Node.Stop(0); err != nil {
		return err
	}
	if err := retry(func() error { return cgroup.Remove(hierarchies, c.Plan.Cgroup) }); err != nil {
		return err
	}
	enabled, err := cgroup.Make(hierarchies, c.Plan.Cgroup)
	r.state.Controllers = append(r.state.Controllers, enabled...)
	if err := errors.Join(err, r.save()); err != nil {
		return err
	}
	return r.makeNode(func() error {
		return nodefs.Prepare(nodefs.Dirs{Scratch: c.scratch(), Data: c.Layout.Data(), Disk: disk})
	})
}
