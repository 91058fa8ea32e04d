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
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// PowerCut ends all daemons and every node as a power cut does, or one node and its daemons, and leaves nodes that are about to boot:
//   - every process is suspended, then killed: none sees another one end, or cleans up,
//   - what a machine holds in memory goes: namespaces, mounts, links, cgroups, /run,
//   - what a machine holds on a disk stays: etcd, images, containers, the kubelet's files, /etc, /opt, /var/lib, /var/log, the keys.
//
// Files keep what was written but not synced, which a real power cut may lose. The control plane's network namespace stays too, with
// what a test runs in it.
func (c *Cluster) PowerCut(only string) error {
	return c.withState(func(s *state.State) error {
		r := &run{cluster: c, state: s, began: time.Now()}
		nodes, err := c.chosen(s, only)
		if err != nil {
			return err
		}
		disks := make([]*os.File, len(nodes))
		for i, n := range nodes {
			err := space.Do(n.PID, space.Node, func() (err error) { disks[i], err = nodefs.Disk(c.dirs(n.Node).Scratch); return err })
			if err != nil {
				return err
			}
			defer disks[i].Close()
		}
		hierarchies, err := hierarchies()
		if err != nil {
			return err
		}
		s.Ready = false
		if err := r.save(); err != nil {
			return err
		}
		number, err := killAtOnce(func() ([]int, error) { return c.powered(s, hierarchies, nodes, only == "") })
		if err != nil {
			return err
		}
		r.say(fmt.Sprintf("%d processes killed", number))
		if err := stopAll(nodes); err != nil { // before the first one is made anew and looks for others
			return err
		}
		for i, n := range nodes {
			if err := r.emptyNode(n, hierarchies, disks[i]); err != nil {
				return err
			}
			r.say(n.Name + " is ready to boot")
		}
		return nil
	})
}

func stopAll(nodes []Node) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, n.Stop(0))
	}
	return err
}

// Boot starts all daemons after PowerCut, or those of one node, and returns when each node has said that it is ready. If it fails, the logs are
// kept, and the rest, to be looked at until `kc down` or `kc up`.
func (c *Cluster) Boot(ctx context.Context, only string) error {
	return c.withState(func(s *state.State) error {
		nodes, err := c.chosen(s, only)
		if err != nil {
			return err
		}
		for name, process := range s.Daemons {
			if cmd := commands(c.Plan, c.Layout, s)[name]; process.Alive() && (only == "" || cmd.holder == *nodes[0].Holder) {
				return fmt.Errorf("%s runs: a boot follows `kc powercut`", name)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		r := &run{cluster: c, state: s, began: time.Now(), ended: make(chan ending, 16)}
		var steps []step
		if only == "" {
			steps = []step{{"container runtime and API server are ready", r.startFirst}, {"node is ready", r.startRest}}
			nodes = nodes[1:]
		}
		for _, n := range nodes {
			steps = append(steps, step{n.Name + " is ready", func(ctx context.Context) error { return r.bring(ctx, n) }})
		}
		if err := r.do(ctx, steps...); err != nil {
			return errors.Join(fmt.Errorf("boot the node: %w", err), c.keepLogs())
		}
		return nil
	})
}

// powered lists the processes of nodes, and if wanted all daemons: only they, of what is in the control plane's namespace. A test runs there too.
func (c *Cluster) powered(s *state.State, hierarchies []cgroup.Hierarchy, nodes []Node, daemons bool) ([]int, error) {
	var planned []plan.Node
	var holders []state.Holder
	for _, n := range nodes {
		planned, holders = append(planned, n.Node), append(holders, *n.Holder)
	}
	pids, err := c.found(s, hierarchies, planned, holders)
	if daemons {
		pids = withDaemons(s, pids)
	}
	return pids, err
}

// killAtOnce suspends all processes before it kills the first one, and returns how many there were.
func killAtOnce(look func() ([]int, error)) (int, error) {
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

// emptyNode replaces a node's namespaces and cgroups by new ones. Of the old node there is only the disk.
func (r *run) emptyNode(n Node, hierarchies []cgroup.Hierarchy, disk *os.File) error {
	if err := retry(func() error { return cgroup.Remove(hierarchies, n.Cgroup) }); err != nil {
		return err
	}
	if err := r.makeCgroup(n); err != nil {
		return err
	}
	return r.makeNode(n, func() error {
		dirs := r.cluster.dirs(n.Node)
		dirs.Disk = disk
		return nodefs.Prepare(dirs)
	})
}

// AddNode adds the next node, with the images. If it fails, what was begun stays, to be looked at until `kc down` or `kc up`.
func (c *Cluster) AddNode(ctx context.Context, images []string) error {
	return c.withState(func(s *state.State) error {
		next := len(s.Nodes)
		if next == len(c.Plan.Nodes) {
			return fmt.Errorf("there are %d nodes, and no more can be", next)
		}
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		r := &run{cluster: c, parts: Parts{Images: images}, state: s, began: time.Now(), ended: make(chan ending, 16)}
		if err := r.do(ctx, step{c.Plan.Nodes[next].Name + " is ready", r.addNode}); err != nil {
			return errors.Join(fmt.Errorf("add a node: %w", err), c.keepLogs())
		}
		return nil
	})
}
