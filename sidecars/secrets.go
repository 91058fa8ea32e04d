package sidecars

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// secretsPeriod is the time between two checks of a sandbox's secrets.
const secretsPeriod = 10 * time.Second

// renewSecrets brings the secrets of the sandbox's proxies up to date, once in secretsPeriod. It may note that new proxies have to read them.
func renewSecrets(ctx context.Context, m *Manager, o observed, mem memory) (observed, memory) {
	now := time.Now()
	if now.Sub(mem.secretsAt) < secretsPeriod {
		return o, mem
	}
	mem.secretsAt = now
	pod := func() (*corev1.Pod, error) { return m.Cluster.CurrentPod(ctx, o.sandbox) }
	mem.stale = o.home.RenewSecrets(ctx, m.Secrets, o.sandbox.Namespace, pod, o.containers)
	o.notes = o.home.Notes()
	return o, mem
}
