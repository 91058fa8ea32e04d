package cluster

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/cgroup"
	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// endLimit bounds each step of an end that has to wait for the kernel.
const endLimit = 20 * time.Second

// Down ends the cluster and checks that nothing of it is left. It may be called again, and after a start that was broken off.
func (c *Cluster) Down() error {
	if err := c.Check(); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return c.end()
}

// end takes everything away, in an order in which nothing comes back:
//   - all processes in the cluster, each suspended before the first one ends: a kubelet would start containers again,
//   - the holders, and with them the namespaces, their mounts and links,
//   - the cgroups, the machine's settings, the files.
//
// It kills instead of stopping: what a daemon would clean up disappears with its namespaces.
func (c *Cluster) end() error {
	s, err := c.State()
	if err != nil && !errors.Is(err, state.ErrNotUp) {
		return err
	}
	if s == nil {
		s = &state.State{}
	}
	if err := refuseInside(s); err != nil {
		return err
	}
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	if _, err := killAtOnce(func() ([]int, error) { return c.residents(s, hierarchies) }); err != nil {
		return err
	}
	for _, holder := range s.Holders() {
		if err := holder.Stop(0); err != nil {
			return err
		}
	}
	for _, n := range c.Plan.Nodes {
		if err := retry(func() error { return cgroup.Remove(hierarchies, n.Cgroup) }); err != nil {
			return err
		}
	}
	if err := errors.Join(cgroup.Disable(s.Controllers), restoreSysctls(s.Sysctls)); err != nil {
		return err
	}
	if err := c.removeFiles(); err != nil {
		return err
	}
	return c.checkGone(s)
}

// killAll ends processes until a look finds none: containers, shims, and what was run through `kc exec` and `kc node`.
func killAll(look func() ([]int, error)) error {
	return retry(func() error {
		pids, err := look()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if len(pids) > 0 {
			return fmt.Errorf("processes of the cluster do not end: %v", pids)
		}
		return nil
	})
}

// residents lists who is in the cluster but for the holders, with the daemons.
func (c *Cluster) residents(s *state.State, hierarchies []cgroup.Hierarchy) ([]int, error) {
	pids, err := c.found(s, hierarchies, c.Plan.Nodes, s.Holders())
	return withDaemons(s, pids), err
}

// withDaemons adds the daemons that run.
func withDaemons(s *state.State, pids []int) []int {
	for _, process := range s.Daemons {
		if process.Alive() {
			pids = append(pids, process.PID)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// found lists the processes of some nodes, by their cgroups and by their mounts, and those in the network namespaces of some holders. The numbers of
// namespaces are used again once they are gone, so they count only while the holder lives.
func (c *Cluster) found(s *state.State, hierarchies []cgroup.Hierarchy, nodes []plan.Node, holders []state.Holder) ([]int, error) {
	var pids []int
	for _, n := range nodes {
		inside, err := cgroup.Processes(hierarchies, n.Cgroup)
		if err != nil {
			return nil, err
		}
		pids = append(pids, inside...)
	}
	inside, err := daemon.Where(func(pid int) bool {
		network, _ := daemon.NamespaceID(pid, "net") // a process that ends has none
		return slices.ContainsFunc(holders, func(h state.Holder) bool { return h.Network != "" && h.Network == network && h.Alive() }) ||
			c.seesNode(pid, nodes)
	})
	if err != nil {
		return nil, err
	}
	pids = append(pids, inside...)
	slices.Sort(pids)
	pids = slices.Compact(pids)
	return slices.DeleteFunc(pids, func(pid int) bool {
		p, err := daemon.Identify(pid)
		holds := slices.ContainsFunc(s.Holders(), func(h state.Holder) bool { return h.Process == p })
		return err != nil || !p.Alive() || holds || pid == os.Getpid()
	}), nil
}

// seesNode reports whether a process sees the scratch mount of one of the nodes. No other mount namespace has it.
func (c *Cluster) seesNode(pid int, nodes []plan.Node) bool {
	mountinfo, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	return err == nil && slices.ContainsFunc(nodes, func(n plan.Node) bool {
		return strings.Contains(string(mountinfo), " "+c.dirs(n).Scratch+" ")
	})
}

// refuseInside keeps `kc exec -- kc down` from killing the shell that it was called from.
func refuseInside(s *state.State) error {
	own, err := daemon.NamespaceID(os.Getpid(), "net")
	if err != nil {
		return fmt.Errorf("find the own namespace: %w", err)
	}
	for _, h := range s.Holders() {
		if h.Network == own && s.ControlPlane.Alive() {
			return errors.New("this shell is inside the cluster: run it from outside")
		}
	}
	return nil
}

// retry repeats f until it succeeds or the kernel has had time enough.
func retry(f func() error) error {
	for deadline := time.Now().Add(endLimit); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
