package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/api/v1alpha1"
)

// rolledAtOnce is how many proxies are upgraded at once.
const rolledAtOnce = 5

// rollout measures what it costs to replace all proxies of a node by those of a new version.
func (b bench) rollout(ctx context.Context, dir string) (rows []row, err error) {
	err = b.withSidecars(ctx, dir, func(n *nodeBench, profile string) (err error) {
		if err = n.choose(ctx, profile, b.proxies); err == nil {
			rows, err = n.rollOut(ctx, dir, profile)
		}
		return err
	})
	return rows, err
}

// rollOut changes the profile, and counts what the agent asks the runtime until all proxies are of the new version, and the old ones gone.
func (n *nodeBench) rollOut(ctx context.Context, dir, profile string) (rows []row, err error) {
	a, err := n.manage(ctx, dir, n.proxies)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.stop(syscall.SIGTERM)) }()
	if err := n.settle(ctx, settled); err != nil {
		return nil, err
	}
	objects, err := n.server.objects()
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"env": []any{map[string]any{"name": "VERSION", "value": "2"}}}})
	if err != nil {
		return nil, err
	}
	before, errBefore := a.usage()
	calls, began := n.runtime.containers.calls.Load(), time.Now()
	_, err = objects.Resource(v1alpha1.GroupVersion().WithResource("proxyprofiles")).Patch(ctx, profile, types.MergePatchType, patch, metav1.PatchOptions{})
	if err = errors.Join(errBefore, err); err != nil {
		return nil, err
	}
	err = eventually(ctx, 5*time.Minute, "all proxies are of the new version", func(ctx context.Context) error {
		if old, all := n.runtime.containers.versions(); old > 0 || all != n.proxies {
			return fmt.Errorf("%d of %d are not", old, all)
		}
		return n.awaitEpoch(ctx, 1)
	})
	took := time.Since(began)
	after, errAfter := a.usage()
	if err = errors.Join(err, errAfter); err != nil {
		return nil, err
	}
	asked := float64(n.runtime.containers.calls.Load()-calls) / float64(n.proxies)
	of := fmt.Sprintf("a roll-out of %d proxies, %d at once", n.proxies, rolledAtOnce)
	return []row{
		newRow(of+": calls of the runtime for a proxy", "count", asked, 0, "reported"),
		newRow(of+": CPU of the agent for a proxy", "ms", (after.cpu-before.cpu).Seconds()*1000/float64(n.proxies), 0, "reported"),
		newRow(of+": duration", "s", took.Seconds(), 0, "reported"),
	}, nil
}

// awaitEpoch returns an error unless all ManagedProxies say that their proxies of an epoch are ready.
func (n *nodeBench) awaitEpoch(ctx context.Context, epoch int64) error {
	objects, err := n.server.objects()
	if err != nil {
		return err
	}
	list, err := objects.Resource(v1alpha1.GroupVersion().WithResource("managedproxies")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if is, _, _ := unstructured.NestedInt64(s.Object, "status", "epoch"); is != epoch {
			return fmt.Errorf("the ManagedProxy of %s is of epoch %d", s.GetName(), is)
		}
	}
	return nil
}

// versions returns how many containers there are, and how many of them are the first of their sandbox.
func (c *containers) versions() (first, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.byID {
		if one.GetMetadata().GetAttempt() == 0 {
			first++
		}
	}
	return first, len(c.byID)
}
