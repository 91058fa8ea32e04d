package install

import (
	"fmt"
	"sync"
	"time"
)

// Calls compares the plugin's calls with the pods that have a network. A runtime that reads another directory (OpenShift's CRI-O does not
// read /etc/cni/net.d) never calls the plugin, and nothing else shows that.
//
//   - Called notes a pod that the plugin was called for.
//   - Check gets the pods of the node. The plugin must have been called for the newest one with a network.
//
// The zero value is ready to use. Pods are named by namespace/name.
type Calls struct {
	mu        sync.Mutex
	byPod     map[string]time.Time
	lastCheck time.Time // the last time that Check was called
	lastPrune time.Time // the last time that Called pruned
}

// Pod is a pod of the node with a network of its own, for which the plugin must be called.
type Pod struct {
	// Name is namespace/name.
	Name string
	// Started is when the kubelet began to start it.
	Started time.Time
}

// callTTL is how long a call is kept for a pod that the agent does not see, and for all pods while Check is not called.
const callTTL = 10 * time.Minute

// Called notes that the plugin was called for a pod.
func (c *Calls) Called(pod string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPod == nil {
		c.byPod = map[string]time.Time{}
	}
	c.byPod[pod] = now
	if now.Sub(c.lastCheck) > callTTL && now.Sub(c.lastPrune) > callTTL {
		c.prune(nil, now)
		c.lastPrune = now
	}
}

// prune forgets old calls for pods that are not seen.
func (c *Calls) prune(seen map[string]bool, now time.Time) {
	for name, at := range c.byPod {
		if !seen[name] && now.Sub(at) > callTTL {
			delete(c.byPod, name)
		}
	}
}

// Check returns an error if the runtime starts pods without the plugin. pods are all pods of the node with an address of their own.
// Pods that started before since, when the plugin was chained and the runtime had read the configuration, do not count. An older pod
// without a call does not count either once the plugin was called for a newer one.
func (c *Calls) Check(pods []Pod, since, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missed, called Pod
	seen := make(map[string]bool, len(pods))
	for _, p := range pods {
		seen[p.Name] = true
		newest := &missed
		if _, ok := c.byPod[p.Name]; ok {
			newest = &called
		} else if p.Started.Before(since) || p.Started.After(now) { // after now: the clock was set back
			continue
		}
		if newest.Name == "" || p.Started.After(newest.Started) {
			*newest = p
		}
	}
	c.prune(seen, now)
	c.lastCheck = now
	if missed.Name == "" || called.Name != "" && !called.Started.Before(missed.Started) {
		return nil
	}
	return fmt.Errorf("pod %s got its network without a call of the plugin: does the runtime use this directory of network configurations?", missed.Name)
}
