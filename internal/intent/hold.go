package intent

import (
	"cmp"
	"strconv"
	"time"
)

// KeyHoldSeconds is an annotation of pods and namespaces: how long new connections of a pod wait for a proxy that does not listen.
const KeyHoldSeconds = "pod-network-controller.istio.io/hold-seconds"

const (
	settingHoldSeconds = "hold-seconds"
	maxHoldSeconds     = 600
	wantHoldSeconds    = "whole seconds from 0 to 600; 0 has connections refused at once while the proxy does not listen"
)

// hold reads how long connections wait: the annotation decides first, then the profile of the pod's proxy, and the flag.
func (r *reader) hold() time.Duration {
	f := r.ofProfile(KeyHoldSeconds, settingHoldSeconds, func(p *ManagedProxy) string { return p.HoldSeconds })
	return take(r, settingHoldSeconds, f, holdSeconds)
}

func holdSeconds(key, value string) (time.Duration, error) {
	seconds, err := strconv.ParseUint(value, 10, 32)
	if err != nil || seconds > maxHoldSeconds {
		return 0, &ValueError{Key: key, Value: value, Want: wantHoldSeconds}
	}
	return time.Duration(seconds) * time.Second, nil
}

// holdSetting returns the setting of a pod.
func holdSetting(hold time.Duration, from sources) Setting {
	return Setting{Name: settingHoldSeconds, Value: decimal(uint32(hold / time.Second)), Source: cmp.Or(from[settingHoldSeconds], fromDefault)}
}
