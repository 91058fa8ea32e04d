package sidecars

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
)

// outdatedHash is added to the hash of a proxy that a new one has to replace, though the profile has not changed.
const outdatedHash = "-outdated"

// versionOf returns the hash of the profile's version that a proxy is of.
func versionOf(c sidecar.Container) string { return strings.TrimSuffix(c.Hash, outdatedHash) }

// outdate gives a different hash to the proxies that have to be replaced because their secrets have changed, or their pod wishes it.
func outdate(v view) {
	for i, c := range v.there {
		if v.home.Noted(home.Rotated, c.Epoch) || v.choice.Restart != "" && v.choice.Restart != c.Restart {
			v.there[i].Hash += outdatedHash
		}
	}
}

// Wish returns what Choice.Restart is for a value of the pod's annotation, in a form that fits in a label.
func Wish(value string) string {
	if value == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:8])
}

// secretsPeriod is the time between two checks of a sandbox's secrets.
const secretsPeriod = 10 * time.Second

// renewSecrets brings the secrets of the sandbox's proxies up to date, once in secretsPeriod.
func renewSecrets(ctx context.Context, from home.Secrets, cluster Cluster, v view, f *followed) {
	if now := time.Now(); now.Sub(f.renewed) >= secretsPeriod {
		f.renewed = now
		pod := func() (*corev1.Pod, error) { return cluster.Pod(ctx, v.sandbox) }
		f.stale = v.home.RenewSecrets(ctx, from, v.sandbox.Namespace, pod, v.there)
	}
}
