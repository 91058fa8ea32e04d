package cniinstall

import (
	"fmt"
	"sync"
	"time"
)

// Calls compares the pods that the plugin asked about with those that have a network. A runtime that uses another directory than
// the one that the plugin is chained in (OpenShift's CRI-O does not use /etc/cni/net.d) asks about none, and nothing else tells.
//
//   - Heard notes a pod that the plugin asked about;
//   - Judge gets the pods of the node, and wants the newest one that has a network to have been heard.
//
// The zero value is ready to use. Pods are named by namespace/name.
type Calls struct {
	mu     sync.Mutex
	heard  map[string]time.Time
	judged time.Time // the last time
	pruned time.Time // by Heard, the last time
}

// Pod is a pod of the node that is on a network of its own, and that the plugin must ask about.
type Pod struct {
	// Name is namespace/name.
	Name string
	// Started is when the kubelet began with it.
	Started time.Time
}

// callMemory is how long a call counts for a pod that the agent does not see yet, and for all where nobody judges.
const callMemory = 10 * time.Minute

// Heard notes that the plugin asked about a pod.
func (c *Calls) Heard(pod string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard == nil {
		c.heard = map[string]time.Time{}
	}
	c.heard[pod] = now
	if now.Sub(c.judged) > callMemory && now.Sub(c.pruned) > callMemory {
		c.prune(nil, now)
		c.pruned = now
	}
}

// prune forgets old calls about pods that were not seen.
func (c *Calls) prune(seen map[string]bool, now time.Time) {
	for name, at := range c.heard {
		if !seen[name] && now.Sub(at) > callMemory {
			delete(c.heard, name)
		}
	}
}

// Judge tells, as an error, that the runtime starts pods without the plugin. Pods are all those of the node that have an address of
// their own; the ones that started before since, when the plugin was chained and the runtime had read it, do not count. An older pod
// that nobody asked about is forgiven once the plugin has asked about a newer one.
func (c *Calls) Judge(pods []Pod, since, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missed, asked Pod
	seen := make(map[string]bool, len(pods))
	for _, p := range pods {
		seen[p.Name] = true
		newest := &missed
		if _, ok := c.heard[p.Name]; ok {
			newest = &asked
		} else if p.Started.Before(since) || p.Started.After(now) { // by a clock that was set back since
			continue
		}
		if newest.Name == "" || p.Started.After(newest.Started) {
			*newest = p
		}
	}
	c.prune(seen, now)
	c.judged = now
	if missed.Name == "" || asked.Name != "" && !asked.Started.Before(missed.Started) {
		return nil
	}
	return fmt.Errorf("pod %s got its network without a call of the plugin: does the runtime use this directory of network configurations?", missed.Name)
}
