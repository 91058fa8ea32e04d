package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

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

func newElection(mgr manager.Manager, c Config, work func(ctx context.Context)) (election, error) {
	leases, err := coordinationv1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return election{}, fmt.Errorf("make client for Leases: %w", err)
	}
	return election{work: work, lock: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: c.AgentNamespace, Name: leaseName}, Client: leases,
		// By its pod, an agent that was killed takes up its work at once. Without one, two agents of a node must not have one name.
		LockConfig: resourcelock.ResourceLockConfig{Identity: cmp.Or(c.Pod, c.Node+"_"+string(uuid.NewUUID()))},
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
