// Package upstream has the clusters: where connections and requests go, by which endpoint, and with which transport security.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
)

// Clusters are all clusters with their endpoints.
type Clusters struct {
	secrets *trust.Secrets
	board   *notice.Board

	mu          sync.Mutex
	clusters    map[string]*Cluster
	assignments map[string]*assignment
	received    bool
	changed     chan struct{}
}

// NewClusters has none yet.
func NewClusters(secrets *trust.Secrets, board *notice.Board) *Clusters {
	return &Clusters{secrets: secrets, board: board, clusters: map[string]*Cluster{}, assignments: map[string]*assignment{}, changed: make(chan struct{})}
}

// AddStatic adds a cluster of the bootstrap.
func (c *Clusters) AddStatic(cluster *clusterv3.Cluster) error {
	parsed, err := c.parse(cluster)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", cluster.GetName(), err)
	}
	c.clusters[cluster.GetName()] = parsed
	return nil
}

// Apply takes clusters or endpoints of a response. A resource that is refused changes nothing; the others of the response are taken, as Envoy does.
func (c *Clusters) Apply(change discovery.Change) error {
	var errs []error
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, resource := range change.Set {
		var err error
		if change.Type == discovery.Endpoints {
			var m endpointv3.ClusterLoadAssignment
			if err = resource.UnmarshalTo(&m); err == nil {
				c.assignments[name] = c.assign(name, &m)
			}
		} else {
			var m clusterv3.Cluster
			if err = resource.UnmarshalTo(&m); err == nil {
				err = c.set(name, &m)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, name := range change.Removed {
		if change.Type == discovery.Endpoints {
			delete(c.assignments, name)
		} else if old := c.clusters[name]; old != nil {
			delete(c.clusters, name)
			old.closeIdle()
		}
	}
	if change.Type == discovery.Clusters {
		c.received = true
		wanted := c.services()
		maps.DeleteFunc(c.assignments, func(name string, _ *assignment) bool { return !slices.Contains(wanted, name) })
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return errors.Join(errs...)
}

// set replaces a cluster; with the lock held. One that is as before keeps its connections.
func (c *Clusters) set(name string, m *clusterv3.Cluster) error {
	old := c.clusters[name]
	if old != nil && proto.Equal(old.proto, m) {
		return nil
	}
	parsed, err := c.parse(m)
	if err != nil {
		return err
	}
	c.clusters[name] = parsed
	if old != nil {
		old.closeIdle()
	}
	return nil
}

// Wanted lists the names of endpoints that clusters refer to.
func (c *Clusters) Wanted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.services()
}

// services is Wanted with the lock held.
func (c *Clusters) services() []string {
	names := []string{}
	for _, cluster := range c.clusters {
		if cluster.service != "" {
			names = append(names, cluster.service)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Missing says what was asked for and has not come.
func (c *Clusters) Missing() []string {
	wanted := c.Wanted()
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []string
	if !c.received {
		missing = append(missing, "clusters")
	}
	for _, name := range wanted {
		if c.assignments[name] == nil {
			missing = append(missing, "endpoints "+name)
		}
	}
	return missing
}

// Changed is closed at the next change.
func (c *Clusters) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Find returns a cluster by name. It waits for the endpoints of a new one, as Envoy warms clusters.
func (c *Clusters) Find(ctx context.Context, name string) (*Cluster, error) {
	for {
		c.mu.Lock()
		cluster, changed := c.clusters[name], c.changed
		warm := cluster != nil && (cluster.service == "" || c.assignments[cluster.service] != nil)
		c.mu.Unlock()
		if cluster == nil {
			return nil, fmt.Errorf("no cluster %q", name)
		}
		if warm {
			return cluster, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the endpoints of cluster %s: %w", name, ctx.Err())
		}
	}
}

// endpointsOf returns the endpoints of a cluster with discovery.
func (c *Clusters) endpointsOf(service string) *assignment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.assignments[service]
}

// Each calls f with all clusters, for the administration's listings.
func (c *Clusters) Each(f func(m proto.Message)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cluster := range c.clusters {
		f(cluster.proto)
	}
}
