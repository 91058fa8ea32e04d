package intent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The pod decides first, then its namespace, its profile, and the flag.
func TestHold_podThenNamespaceThenProfileThenFlag(t *testing.T) {
	for name, c := range map[string]struct {
		pod, namespace, flag string
		profile              string
		want                 time.Duration
		source, err          string
	}{
		"nobody":                          {want: 30 * time.Second, source: "default"},
		"the flag":                        {flag: "7", want: 7 * time.Second, source: "flag of the agent: --hold-seconds"},
		"the profile":                     {flag: "7", profile: "0", want: 0, source: "ProxyProfile edge"},
		"the namespace":                   {flag: "7", profile: "0", namespace: "600", want: 10 * time.Minute, source: "annotation of the namespace: " + KeyHoldSeconds},
		"the pod":                         {namespace: "600", pod: "0", want: 0, source: "annotation of the pod: " + KeyHoldSeconds},
		"the pod, no number":              {pod: "ten", err: `value "ten": want whole seconds from 0 to 600`},
		"the pod, nothing":                {pod: " ", err: `value " "`},
		"the pod, negative":               {pod: "-1", err: `value "-1"`},
		"the pod, a fraction":             {pod: "1.5", err: `value "1.5"`},
		"the pod, with a unit":            {pod: "30s", err: `value "30s"`},
		"the pod, an hour":                {pod: "3600", err: `value "3600": want whole seconds from 0 to 600; 0 has connections refused at once while the proxy does not listen`},
		"the namespace, more than 64 bit": {namespace: "18446744073709551616", err: "annotation " + KeyHoldSeconds + " of namespace shop"},
		"the flag, an hour":               {flag: "3600", err: `--hold-seconds: value "3600"`},
	} {
		pod, ns := asking(func(p *corev1.Pod) { p.Annotations = given(KeyHoldSeconds, c.pod) })
		ns.Annotations = given(KeyHoldSeconds, c.namespace)
		pod.Annotations[KeyInitialize] = "true"
		config := Config{Select: SelectAnnotation, Defaults: StandardDefaults()}
		if c.profile != "" {
			pod.Annotations[KeySidecar] = "edge"
			config.Managed = func(string, *corev1.Pod, *corev1.Namespace) *ManagedProxy {
				return &ManagedProxy{Profile: "edge", Owner: Owner{UID: 1337}, OutboundPort: 15001, InboundPort: 15006, HoldSeconds: c.profile}
			}
		}
		if c.flag != "" {
			config.Defaults[settingHoldSeconds] = c.flag
		}
		got, err := Explain(pod, ns, config)
		if c.err != "" {
			wantError(t, name, c.err, err)
			if c.flag != "" {
				wantError(t, name, c.err, config.Defaults.Validate())
			}
			continue
		}
		if setting := sourceOf(t, got, settingHoldSeconds); err != nil || got.Hold != c.want || setting.Source != c.source || setting.Value != decimal(uint32(c.want/time.Second)) {
			t.Errorf("%s: %s, %+v, error %v", name, got.Hold, setting, err)
		}
	}
}
