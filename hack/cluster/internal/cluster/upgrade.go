package cluster

import (
	"context"
	"fmt"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/state"
)

// Upgrade starts Kubernetes again from another directory of programs, in the order in which releases may differ: the API server first, the kubelet last.
// It returns when the new kubelet has said that the node is ready. etcd, the container runtime and all pods go on. If it fails, what has been
// started stays, to be looked at.
func (c *Cluster) Upgrade(ctx context.Context, programs string) error {
	return c.withState(func(s *state.State) error {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		s.Programs = programs
		r := &run{cluster: c, state: s, began: time.Now(), ended: make(chan ending, 16)}
		if err := r.do(ctx, step{"API server is ready", r.renewAPIServer}, step{"node is ready", r.renewRest}); err != nil {
			return fmt.Errorf("upgrade Kubernetes: %w", err)
		}
		return nil
	})
}

func (r *run) renewAPIServer(ctx context.Context) (err error) {
	if r.api, err = r.cluster.client(r.state); err != nil {
		return err
	}
	if err := r.renew(apiServer); err != nil {
		return err
	}
	return r.wait(ctx, "the API server", r.api.Ready)
}

func (r *run) renewRest(ctx context.Context) error {
	if err := r.renew(controllerManager, scheduler); err != nil {
		return err
	}
	for _, n := range r.cluster.nodes(r.state) {
		if err := r.renew(n.Own(kubeProxy), n.Own(kubelet)); err != nil {
			return err
		}
		if err := r.awaitNode(ctx, n, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// renew stops daemons and starts them by the present programs.
func (r *run) renew(names ...string) error {
	for _, name := range names {
		if err := r.state.Daemons[name].Stop(grace); err != nil {
			return err
		}
		if err := r.launch(name); err != nil {
			return err
		}
	}
	return nil
}
