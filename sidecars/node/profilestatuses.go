package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/sidecars/rollout"
)

const (
	// countPause is the least time between two writes of a profile's status, each of which every agent of the cluster receives.
	countPause = 5 * time.Second
	// countAgain is the time after which statuses are looked at without a change, as somebody else may have written them.
	countAgain = time.Minute
)

// profileStatuses writes the statuses of ProxyProfiles. The elected agent does, and no other agent knows more than its own node's proxies:
//
//   - It reads and watches all ManagedProxies of the cluster, as proxyCounts.
//   - Each countPause in which one of them or a profile has changed, it counts them by profile and node.
//   - It writes the statuses that differ from the counts. A write states the version of the profile that it was computed from. If that has
//     changed meanwhile, the status is computed anew.
type profileStatuses struct {
	cache  client.Reader // of profiles
	client client.Client
	api    client.WithWatch
	dirty  atomic.Bool
}

func (s *profileStatuses) changed() { s.dirty.Store(true) }

// work is the elected agent's, until ctx ends.
func (s *profileStatuses) work(ctx context.Context) {
	counts := &proxyCounts{api: s.api, changed: s.changed}
	go counts.follow(ctx)
	looked := time.Now()
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		if !s.dirty.Swap(false) && time.Since(looked) < countAgain {
			return
		}
		looked = time.Now()
		if err := s.write(ctx, counts); err != nil {
			s.changed()
			if ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "statuses of ProxyProfiles not written")
			}
		}
	}, countPause)
}

func (s *profileStatuses) write(ctx context.Context, counts *proxyCounts) error {
	var profiles v1alpha1.ProxyProfileList
	if err := s.cache.List(ctx, &profiles); err != nil {
		return fmt.Errorf("list ProxyProfiles: %w", err)
	}
	versions := map[string]string{}
	for i := range profiles.Items {
		versions[profiles.Items[i].Name] = profile.HashOf(profiles.Items[i].Spec)
	}
	all, complete := counts.count(versions)
	if !complete {
		return nil // which is followed by a change
	}
	var err error
	for i := range profiles.Items {
		p := &profiles.Items[i]
		of := all[p.Name]
		_, invalid := profile.Compile(p)
		err = errors.Join(err, s.writeOne(ctx, p, rollout.StatusOf(p, of.nodes, of.failed, invalid)))
	}
	return err
}

func (s *profileStatuses) writeOne(ctx context.Context, p *v1alpha1.ProxyProfile, status v1alpha1.ProxyProfileStatus) error {
	if equality.Semantic.DeepEqual(status, p.Status) {
		return nil
	}
	text, err := json.Marshal(map[string]any{ // not the difference, which would leave out that nothing has failed
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "status": status,
	})
	if err != nil {
		return fmt.Errorf("write status of ProxyProfile %q: %w", p.Name, err)
	}
	object := &v1alpha1.ProxyProfile{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	err = s.client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, text), client.FieldOwner(fieldOwner))
	switch {
	case apierrors.IsConflict(err): // the cache is behind
		s.changed()
		return nil
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("write status of ProxyProfile %q: %w", p.Name, err)
	}
	return nil
}

// leaseName is the Lease of the elected agent, in the agents' namespace.
const leaseName = "istio-pod-network-controller-profiles"

// Every agent reads the Lease after leaseRetry to 2.2 times that, which is less than half of what kubelets ask about Leases of their own. An
// agent that dies is followed by another one within leaseTime and one such pause.
const (
	leaseTime  = time.Minute
	leaseRenew = 30 * time.Second
	leaseRetry = 15 * time.Second
)

// election has one agent of the cluster do some work. The others go on without it, and so does an agent that loses the election. It is a
// manager.Runnable.
type election struct {
	lock resourcelock.Interface
	// work returns soon after its ctx has ended.
	work func(ctx context.Context)
}

func newElection(mgr manager.Manager, namespace, pod, node string, work func(ctx context.Context)) (election, error) {
	leases, err := coordinationv1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return election{}, fmt.Errorf("make client for Leases: %w", err)
	}
	return election{work: work, lock: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: leaseName}, Client: leases,
		// By its pod, an agent that was killed takes up its work at once. Without one, two agents of a node must not have one name.
		LockConfig: resourcelock.ResourceLockConfig{Identity: cmp.Or(pod, node+"_"+string(uuid.NewUUID()))},
	}}, nil
}

// Start takes part until ctx ends, and then leaves the work to another agent at once.
func (e election) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: e.lock, LeaseDuration: leaseTime, RenewDeadline: leaseRenew, RetryPeriod: leaseRetry, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: e.work, OnStoppedLeading: func() {}},
		})
		if err != nil {
			return fmt.Errorf("elect an agent: %w", err)
		}
		elector.Run(ctx)
	}
	return nil
}
