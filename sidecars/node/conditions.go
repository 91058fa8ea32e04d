package node

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars"
)

const (
	// turnPause is how much later than the node before it a node writes the conditions.
	turnPause = 3 * time.Second
	// goneCheck is the time after which nodes that have not seen a profile's version are looked for.
	goneCheck = time.Minute
	// maxGone bounds how many of them are looked for at once.
	maxGone = 3
	// standIns is over how many places the nodes without an entry are spread.
	standIns = 20
)

// sidecarConditions writes the conditions of ProxyProfiles, which sum up what all nodes have written. Any node could, and one does:
//
//   - Each computes from its cache what they should say. If they say so, nothing is done.
//   - Otherwise the first node of the list writes them after sumPause, the next turnPause later if they still do not say so, and so on.
//   - A write states the version of the object that it was computed from. A write that is refused for that reason is computed anew.
//   - An entry of a node that is no longer in the cluster is taken away in the same order, as it would never be up to date.
//
// It is a reconcile.Reconciler, which must work on one profile at a time.
type sidecarConditions struct {
	cache client.Reader
	// live reads nodes, which are not in the cache.
	live   client.Reader
	client client.Client
	node   string
	turns  map[string]turn // by profile
}

// turn is the state of a profile that makes this node wait before it writes, and since when.
type turn struct {
	generation int64
	conditions []metav1.Condition
	wrong      bool // they do not say what they should
	since      time.Time
}

func newSidecarConditions(cache, live client.Reader, c client.Client, node string) *sidecarConditions {
	return &sidecarConditions{cache: cache, live: live, client: c, node: node, turns: map[string]turn{}}
}

// Reconcile looks at one profile.
func (c *sidecarConditions) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.ProxyProfile
	if err := c.cache.Get(ctx, r.NamespacedName, &p); err != nil {
		delete(c.turns, r.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	want := sidecars.Conditions(&p)
	wrong := !equality.Semantic.DeepEqual(want, p.Status.Conditions)
	if !wrong && meta.IsStatusConditionTrue(want, v1alpha1.ConditionUpgraded) {
		delete(c.turns, p.Name)
		return reconcile.Result{}, nil
	}
	place := c.place(&p)
	pause := goneCheck * time.Duration(place+1)
	if wrong {
		pause = sumPause + turnPause*time.Duration(place)
	}
	if left := time.Until(c.since(&p, wrong).Add(pause)); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	delete(c.turns, p.Name)
	if !wrong {
		return reconcile.Result{RequeueAfter: pause}, c.removeGone(ctx, &p)
	}
	return reconcile.Result{}, c.write(ctx, &p, want) // the write is an event, and so leads here again
}

// place is how many nodes come before this one. Those without an entry come last: they write only if there is no other.
func (c *sidecarConditions) place(p *v1alpha1.ProxyProfile) int {
	if i := slices.IndexFunc(p.Status.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Name == c.node }); i >= 0 {
		return i
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.node))
	return len(p.Status.Nodes) + 1 + int(hash.Sum32()%standIns)
}

// since returns when the conditions were first seen as they are now.
func (c *sidecarConditions) since(p *v1alpha1.ProxyProfile, wrong bool) time.Time {
	now := turn{generation: p.Generation, conditions: p.Status.Conditions, wrong: wrong, since: time.Now()}
	before, known := c.turns[p.Name]
	if known && before.generation == now.generation && before.wrong == wrong && equality.Semantic.DeepEqual(before.conditions, now.conditions) {
		return before.since
	}
	c.turns[p.Name] = now
	return now.since
}

// write replaces the conditions of the very object that they were computed from. If that has changed meanwhile, the change is an event.
func (c *sidecarConditions) write(ctx context.Context, p *v1alpha1.ProxyProfile, conditions []metav1.Condition) error {
	changed := p.DeepCopy()
	changed.Status.Conditions = conditions
	patch := client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})
	err := c.client.Status().Patch(ctx, changed, patch, client.FieldOwner(fieldOwner))
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write conditions of ProxyProfile: %w", err)
	}
	return nil
}

// removeGone takes the entries away of nodes that are no longer in the cluster.
func (c *sidecarConditions) removeGone(ctx context.Context, p *v1alpha1.ProxyProfile) error {
	checked := 0
	for _, n := range p.Status.Nodes {
		if n.ObservedGeneration == p.Generation || checked == maxGone {
			continue
		}
		checked++
		node := &metav1.PartialObjectMetadata{}
		node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		err := c.live.Get(ctx, client.ObjectKey{Name: n.Name}, node)
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("look for node %q: %w", n.Name, err)
		}
		if err := applyEntry(ctx, c.client, p.Name, n.Name, nil); err != nil {
			return client.IgnoreNotFound(err)
		}
		log.FromContext(ctx).Info("node of ProxyProfile taken away: it is no longer in the cluster", "profile", p.Name, "node", n.Name)
	}
	return nil
}
