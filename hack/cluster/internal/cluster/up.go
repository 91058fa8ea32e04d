package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/api"
	"istio-pod-network-controller/hack/cluster/internal/cgroup"
	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// startLimit bounds a whole start. It takes ten seconds on two idle cores.
const startLimit = 3 * time.Minute

// Parts are what a start needs to be there already.
type Parts struct {
	// Programs holds the built programs, Tools the kit's own commands.
	Programs, Tools string
	// Images are the archives that each node is to hold, Nodes how many nodes there are to be.
	Images []string
	Nodes  int
	// Runtime is the container runtime's name, RuntimePrograms where its programs are if that is not Programs.
	Runtime, RuntimePrograms string
}

// run is one start, from nothing to ready nodes:
//   - note what the machine's settings are and make the first node's cgroup,
//   - make keys, certificates and kubeconfigs,
//   - make both sets of namespaces and the link between them,
//   - start the container runtime, etcd and the API server, and load the images meanwhile,
//   - start the rest and wait until a pod can be made,
//   - add the other nodes, one after the other.
//
// Each step records what it leaves behind before the next one begins. Whichever fails, the end takes back what is recorded.
type run struct {
	cluster *Cluster
	parts   Parts
	state   *state.State
	api     *api.Client
	began   time.Time
	// ended gets a daemon that ends before the start does.
	ended chan ending
}

type ending struct {
	daemon string
	err    error
}

// Up starts the cluster and returns when pods can be made. A start that fails leaves nothing but its logs. What is left of an earlier
// cluster is removed first.
func (c *Cluster) Up(ctx context.Context, parts Parts) error {
	if err := c.Check(); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.clear(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	r := &run{
		cluster: c, parts: parts, began: time.Now(), ended: make(chan ending, 16),
		state: &state.State{
			Programs: parts.Programs, Tools: parts.Tools, Runtime: parts.Runtime, RuntimePrograms: parts.RuntimePrograms,
			Nodes: make([]state.Holder, 1), Daemons: map[string]daemon.Process{}, Began: time.Now().Round(time.Second),
		},
	}
	if err := r.start(ctx); err != nil {
		return errors.Join(fmt.Errorf("start the cluster: %w", err), c.keepLogs(), c.end())
	}
	return nil
}

// clear removes what is left of a cluster that is not up: it was killed, the machine was started again, or its start or boot was broken off.
// A cluster that is up is refused with its age: it may be somebody else's, who would miss it. The caller has the lock.
func (c *Cluster) clear() error {
	s, err := c.State()
	switch {
	case errors.Is(err, state.ErrNotUp):
		// A reboot empties /run, and leaves etcd's files in the cache, of which new keys must find none.
		if err := c.refuseUnrecorded(); err != nil || !exists(c.Layout.Data()) {
			return err
		}
	case err != nil:
		return err
	case s.Ready && slices.ContainsFunc(s.Holders(), state.Holder.Alive):
		return fmt.Errorf("the cluster is up already, since %s: use it, or end it with `kc down`", s.Began.Format(time.DateTime))
	}
	fmt.Fprintln(c.Out, "removing what is left of an earlier cluster")
	return c.end()
}

// refuseUnrecorded keeps a cluster that has its record elsewhere, as that of `make fresh` has, from being killed.
func (c *Cluster) refuseUnrecorded() error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	pids, err := c.residents(&state.State{}, hierarchies)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("processes %v are of a cluster that is not recorded here: `kc down` ends them", pids)
	}
	return err
}

// step is a part of a start.
type step struct {
	name string
	do   func(context.Context) error
}

// start makes new keys each time: the keys of an earlier cluster open nothing.
func (r *run) start(ctx context.Context) error {
	steps := []step{
		{"machine prepared", func(context.Context) error { return r.prepareMachine() }},
		{"keys and certificates made", func(context.Context) error { return makeCredentials(r.cluster.Plan, r.cluster.Layout) }},
		{"namespaces made and joined", func(context.Context) error { return r.makeSpaces() }},
		{"container runtime and API server are ready", r.startFirst},
		{"node is ready", r.startRest},
	}
	for _, n := range r.cluster.Plan.Nodes[1:r.parts.Nodes] {
		steps = append(steps, step{n.Name + " is ready", r.addNode})
	}
	return r.do(ctx, steps...)
}

// do does the steps in order and prints each one that is done, with the time since the beginning.
func (r *run) do(ctx context.Context, steps ...step) error {
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step.do(ctx); err != nil {
			return err
		}
		r.say(step.name)
	}
	r.state.Ready = true
	return r.save()
}

// prepareMachine notes what the start changes for the whole machine, before it does.
func (r *run) prepareMachine() error {
	l := r.cluster.Layout
	for _, dir := range []string{l.Logs(), l.Data()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the state's directories: %w", err)
		}
	}
	var err error
	if r.state.Sysctls, err = readSysctls(); err != nil {
		return err
	}
	if err := r.save(); err != nil {
		return err
	}
	if err := loadBridgeFilter(); err != nil {
		return err
	}
	return r.makeCgroup(r.cluster.nodes(r.state)[0])
}

// makeCgroup notes what it switches on for the whole machine.
func (r *run) makeCgroup(n Node) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	enabled, err := cgroup.Make(hierarchies, n.Cgroup)
	r.state.Controllers = append(r.state.Controllers, enabled...)
	return errors.Join(err, r.save())
}

// startFirst starts what needs nothing, and what only needs etcd. The images are loaded while the API server comes up.
func (r *run) startFirst(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.launch(r.state.Runtime, etcd, apiServer); err != nil {
		return err
	}
	var err error
	if r.api, err = r.cluster.client(r.state); err != nil {
		return err
	}
	first := r.cluster.nodes(r.state)[0]
	if err := r.awaitRuntime(ctx, first); err != nil {
		return err
	}
	loaded := make(chan error, 1)
	go func() { loaded <- r.loadAll(ctx, first) }()
	if err := r.wait(ctx, "the API server", r.api.Ready); err != nil {
		cancel()
		return errors.Join(err, <-loaded)
	}
	return <-loaded
}

// startRest starts what would only retry, and compete for the processor, before the API server is ready.
func (r *run) startRest(ctx context.Context) error {
	if err := r.launch(controllerManager, scheduler, kubelet); err != nil {
		return err
	}
	if err := r.wait(ctx, "the default service account", r.api.DefaultServiceAccount); err != nil {
		return err
	}
	return r.finish(ctx, r.cluster.nodes(r.state)[0])
}

// finish starts kube-proxy once the node has addresses, or it would end half a minute later, and waits for the node. Pods that take a taint from it, with
// which it is not ready, may need kube-proxy.
func (r *run) finish(ctx context.Context, n Node) error {
	if err := r.wait(ctx, n.Name, func(ctx context.Context) error { return r.api.NodeAddressed(ctx, n.Name) }); err != nil {
		return err
	}
	if err := r.launch(n.Own(kubeProxy)); err != nil {
		return err
	}
	return r.awaitNode(ctx, n, r.began)
}

// addNode adds the next node to a cluster whose control plane is ready.
func (r *run) addNode(ctx context.Context) error {
	r.state.Nodes = append(r.state.Nodes, state.Holder{})
	nodes := r.cluster.nodes(r.state)
	n := nodes[len(nodes)-1]
	if err := r.makeCgroup(n); err != nil {
		return err
	}
	if err := r.makeNode(n, func() error { return r.prepareNode(n) }); err != nil {
		return err
	}
	return r.bring(ctx, n)
}

// bring starts a node's daemons beside a control plane that is ready.
func (r *run) bring(ctx context.Context, n Node) (err error) {
	if r.api, err = r.cluster.client(r.state); err != nil {
		return err
	}
	if err := r.launch(n.Own(r.state.Runtime)); err != nil {
		return err
	}
	if err := r.awaitRuntime(ctx, n); err != nil {
		return err
	}
	if err := r.loadAll(ctx, n); err != nil {
		return err
	}
	if err := r.wait(ctx, "the API server", func(ctx context.Context) error { return r.api.Register(ctx, n.Name, n.Pods.String()) }); err != nil {
		return err
	}
	if err := r.launch(n.Own(kubelet)); err != nil {
		return err
	}
	return r.finish(ctx, n)
}

// awaitRuntime waits for a node's container runtime to answer.
func (r *run) awaitRuntime(ctx context.Context, n Node) error {
	runtime, err := dialRuntime(r.state, *n.Holder)
	if err != nil {
		return err
	}
	defer runtime.Close()
	return r.wait(ctx, "the container runtime", runtime.Ready)
}

// awaitNode wants a node to have said after a time that it is ready, and to have the range of pods that its files say.
func (r *run) awaitNode(ctx context.Context, n Node, after time.Time) error {
	return r.wait(ctx, n.Name, func(ctx context.Context) error { return r.api.NodeReady(ctx, n.Name, n.Pods.String(), after) })
}

// launch records each daemon before the next one starts, so that `kc down` finds it whatever happens.
func (r *run) launch(names ...string) error {
	for _, name := range names {
		ended, err := r.cluster.launch(r.state, name)
		if err != nil {
			return err
		}
		go func() {
			r.ended <- ending{name, <-ended}
		}()
		if err := r.save(); err != nil {
			return err
		}
	}
	return nil
}

// wait calls a function until it returns nil. When the time is over or a daemon ends, it returns the function's last error.
func (r *run) wait(ctx context.Context, what string, ask func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last answer: %w", what, ctx.Err(), err)
		case e := <-r.ended:
			log := daemon.LastLines(r.cluster.logFile(e.daemon), 12)
			return errors.Join(fmt.Errorf("%s ended; the end of its log:\n%s", e.daemon, log), e.err)
		case <-ticker.C:
		}
	}
}

// save is called after each step that leaves something behind.
func (r *run) save() error { return r.state.Save(r.cluster.Layout.State()) }

// say prints one line of progress.
func (r *run) say(what string) {
	fmt.Fprintf(r.cluster.Out, "%7.1fs  %s\n", time.Since(r.began).Seconds(), what)
}
