package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
)

// allNodes is more than any node's slot.
const allNodes = 1 << 16

// Held reports whether a node may not use the present version of a profile yet, which has this hash.
func Held(p *v1alpha1.ProxyProfile, hash, node string) bool {
	if !isBounded(p) {
		return false
	}
	now := p.Status.Rollout
	return now == nil || now.Hash != hash || rolloutSlot(node, hash) >= now.Admitted
}

// NodeCount counts the pods of one node that have chosen a profile: those whose proxy is ready and of its present version, and those for whom
// that version has failed. Paused reports whether the others wait for these.
type NodeCount struct {
	Pods, Upgraded, Failed int32
	Paused                 bool
}

// isBounded reports whether there are nodes that may have to wait.
func isBounded(p *v1alpha1.ProxyProfile) bool {
	r := p.Spec.Rollout()
	return r.MaxNodes > 0 || hasPartition(r) || r.Paused
}

// hasPartition reports whether some nodes keep the version before. The sum of both fields may be more than they hold.
func hasPartition(r v1alpha1.Rollout) bool { return r.Partition > 0 || r.PartitionPercent > 0 }

// nextRollout returns which nodes may use the present version of a profile, by the counts of its nodes and the profile's status:
//
//   - On at most maxNodes of the admitted nodes there are proxies that are not upgraded. Once there are fewer, the next nodes are admitted, by
//     their slots. Nodes without such proxies need no admission.
//   - While upgrades are paused on an admitted node, or by the profile, no other node is admitted.
//   - The nodes with the highest slots are not admitted while they belong to the partition.
//   - A node that was admitted stays admitted until the version changes.
func nextRollout(p *v1alpha1.ProxyProfile, nodes map[string]NodeCount) *v1alpha1.RolloutStatus {
	if !isBounded(p) {
		return nil
	}
	out := &v1alpha1.RolloutStatus{Hash: profile.HashOf(p.Spec)}
	if was := p.Status.Rollout; was != nil && was.Hash == out.Hash {
		out.Admitted = was.Admitted
	}
	bounds := p.Spec.Rollout()
	free, stops := int(bounds.MaxNodes), bounds.Paused
	if free == 0 {
		free = len(nodes)
	}
	var waiting []int32 // slots
	for name, n := range nodes {
		at := rolloutSlot(name, out.Hash)
		switch admitted := at < out.Admitted; {
		case n.Upgraded == n.Pods:
		case admitted:
			free--
			stops = stops || n.Paused
		default:
			waiting = append(waiting, at)
		}
	}
	slices.Sort(waiting)
	next := out.Admitted
	switch {
	case stops:
	case len(waiting) == 0:
		next = allNodes
	case free > 0: // nodes with the same slot are admitted together
		next = waiting[min(free, len(waiting))-1] + 1
	}
	out.Admitted = max(out.Admitted, min(next, outsidePartition(p, nodes, out.Hash)))
	return out
}

// outsidePartition returns how many slots at most a profile's partition leaves to the nodes that use a version.
func outsidePartition(p *v1alpha1.ProxyProfile, nodes map[string]NodeCount, hash string) int32 {
	bounds := p.Spec.Rollout()
	stay := max(int(bounds.Partition), (int(bounds.PartitionPercent)*max(len(nodes), 1)+99)/100) // of no nodes, a share would admit all that come later
	switch {
	case stay == 0:
		return allNodes
	case stay >= len(nodes):
		return 0
	}
	var slots []int32
	for name := range nodes {
		slots = append(slots, rolloutSlot(name, hash))
	}
	slices.Sort(slots)
	return slots[len(slots)-stay]
}

// rolloutSlot is a node's slot among all nodes in the roll-out of a version, below allNodes. Each version has another order: no node is always the first.
func rolloutSlot(node, hash string) int32 {
	sum := sha256.Sum256([]byte(hash + "/" + node))
	return int32(binary.BigEndian.Uint16(sum[:]))
}
