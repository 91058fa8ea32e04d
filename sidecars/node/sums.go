package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars"
)

const (
	// sumPause gathers the changes of many proxies into one write: every agent of the cluster receives each.
	sumPause = 2 * time.Second
	// sumForgets is the time after which an entry of this node that nobody keeps is taken away: the node's pods have been seen by then.
	sumForgets = time.Minute
	// maxSumMessage and maxMessage bound texts as the API's schema does.
	maxSumMessage, maxMessage = 1024, 4096
)

// sidecarSums writes this node's entry into the status of each ProxyProfile. It is a manager.Runnable.
type sidecarSums struct {
	client client.Client
	node   string
	queue  workqueue.TypedRateLimitingInterface[string] // names of profiles
	mu     sync.Mutex
	sums   map[string]sidecars.Summary
}

func newSidecarSums(c client.Client, node string) *sidecarSums {
	return &sidecarSums{
		client: c, node: node, sums: map[string]sidecars.Summary{},
		queue: newWriteQueue(),
	}
}

// Summarize queues what is to be shown.
func (s *sidecarSums) Summarize(profile string, sum sidecars.Summary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[profile] = sum
	s.queue.AddAfter(profile, sumPause)
}

// Seen takes the entry of this node away later if none of its pods uses the profile by then.
func (s *sidecarSums) Seen(p *v1alpha1.ProxyProfile) {
	if slices.ContainsFunc(p.Status.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Name == s.node }) {
		s.queue.AddAfter(p.Name, sumForgets)
	}
}

// Start writes until ctx ends.
func (s *sidecarSums) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.queue.ShutDown)
	defer stop()
	for {
		profile, ended := s.queue.Get()
		if ended {
			return nil
		}
		err := s.write(ctx, profile)
		switch {
		case err == nil || ctx.Err() != nil:
			s.queue.Forget(profile)
		case apierrors.IsNotFound(err) || apierrors.IsInvalid(err): // it is gone, or has the entries of 100 other nodes
			logr.FromContextOrDiscard(ctx).V(1).Info("status of ProxyProfile not written", "profile", profile, "reason", err.Error())
			s.queue.Forget(profile)
		default:
			logr.FromContextOrDiscard(ctx).Error(err, "status of ProxyProfile not written", "profile", profile)
			s.queue.AddRateLimited(profile)
		}
		s.queue.Done(profile)
	}
}

// write applies the entry. A node without pods of the profile has none.
func (s *sidecarSums) write(ctx context.Context, profile string) error {
	s.mu.Lock()
	sum := s.sums[profile]
	if sum.Pods == 0 {
		delete(s.sums, profile)
	}
	s.mu.Unlock()
	if sum.Pods == 0 {
		return applyEntry(ctx, s.client, profile, s.node, nil)
	}
	return applyEntry(ctx, s.client, profile, s.node, []any{map[string]any{
		"name": s.node, "observedGeneration": sum.Generation, "pods": int64(sum.Pods), "upgraded": int64(sum.Upgraded),
		"failed": int64(sum.Failed), "paused": sum.Paused, "message": clip(sum.Message, maxSumMessage),
	}})
}

// applyEntry replaces what one node has written into a profile's status. Each node has an owner of its own, so that none takes the others'
// entries away.
func applyEntry(ctx context.Context, c client.Client, profile, node string, entries []any) error {
	status := map[string]any{}
	if len(entries) > 0 {
		status["nodes"] = entries
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "ProxyProfile", "metadata": map[string]any{"name": profile}, "status": status,
	}}
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), ownerOf(node), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply status of ProxyProfile: %w", err)
	}
	return nil
}

// ownerOf returns the field owner of a node's entry; the API server takes 128 bytes, and a node's name may be longer.
func ownerOf(node string) client.FieldOwner {
	const maxOwner = 128
	if owner := fieldOwner + "/" + node; len(owner) <= maxOwner {
		return client.FieldOwner(owner)
	}
	sum := sha256.Sum256([]byte(node))
	return client.FieldOwner(fieldOwner + "/" + hex.EncodeToString(sum[:]))
}

// clip shortens a text to so many bytes.
func clip(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size], "")
}
