package intent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/iptables"
)

func config() Config {
	return Config{
		Select: SelectAnnotation, ExcludedNamespaces: []string{"kube-system"}, AgentNamespace: "agents",
		UnsupportedHandlers: []string{"kata*", "runsc"}, Defaults: StandardDefaults(),
	}
}

// asking is a pod with a proxy in a namespace that asks for redirection.
func asking(change func(*corev1.Pod)) (*corev1.Pod, *corev1.Namespace) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{}, Labels: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}},
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{KeyInitialize: "true"}}}
	if change != nil {
		change(pod)
	}
	return pod, ns
}

func annotate(kv ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(kv); i += 2 {
			p.Annotations[kv[i]] = kv[i+1]
		}
	}
}

func noProxy(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }

func TestOf_selectAnnotation_redirectsPodsThatAsk(t *testing.T) {
	cases := map[string]struct {
		change    func(*corev1.Pod)
		namespace map[string]string // annotations in place of the asking ones
		want      Reason            // "" = redirected
	}{
		"a pod of an asking namespace":                       {},
		"a native sidecar counts as a proxy":                 {change: func(p *corev1.Pod) { noProxy(p); p.Spec.InitContainers = []corev1.Container{{Name: "istio-proxy"}} }},
		"a pod that asks itself":                             {change: annotate(KeyInitialize, "true"), namespace: map[string]string{}},
		"a pod that asks itself needs no proxy":              {change: func(p *corev1.Pod) { noProxy(p); annotate(KeyInitialize, "true")(p) }},
		"neither pod nor namespace asks":                     {namespace: map[string]string{}, want: NotAsked},
		"a namespace's other values do not ask":              {namespace: map[string]string{KeyInitialize: "yes"}, want: NotAsked},
		"a pod's false wins over its namespace":              {change: annotate(KeyInitialize, "false"), want: OptedOut},
		"a namespace alone does not take pods without proxy": {change: noProxy, want: NoProxy},
		"host network":          {change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, want: HostNetwork},
		"succeeded":             {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, want: Finished},
		"failed":                {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, want: Finished},
		"windows":               {change: func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, want: Windows},
		"istio-init":            {change: func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}} }, want: IstioInit},
		"a deployer pod":        {change: annotate("openshift.io/deployer-pod-for.name", "x"), want: DeployerPod},
		"a build pod":           {change: annotate("openshift.io/build.name", "x"), want: BuildPod},
		"the agent's namespace": {change: func(p *corev1.Pod) { p.Namespace = "agents" }, want: AgentNamespace},
		"an excluded namespace": {change: func(p *corev1.Pod) { p.Namespace = "kube-system" }, want: ExcludedNamespace},
		"even if it asks itself": {
			change: func(p *corev1.Pod) { p.Namespace = "kube-system"; annotate(KeyInitialize, "true")(p) }, want: ExcludedNamespace,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			if c.namespace != nil {
				ns.Annotations = c.namespace
			}
			got, err := Of(pod, ns, config())
			if err != nil || got.Reason != c.want || got.Redirect != (c.want == "") {
				t.Errorf("redirect %v, reason %q, error %v; want reason %q", got.Redirect, got.Reason, err, c.want)
			}
		})
	}
	pod, _ := asking(nil)
	if got, err := Of(pod, nil, config()); err != nil || got.Reason != NotAsked {
		t.Errorf("without a namespace: %+v, %v", got, err)
	}
}

func TestOf_selectInjected_redirectsAsIstio(t *testing.T) {
	status := annotate("sidecar.istio.io/status", "{}")
	proxy := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { status(p); change(&p.Spec.Containers[1]) }
	}
	cases := map[string]struct {
		change func(*corev1.Pod)
		want   Reason
	}{
		"injected":             {change: status},
		"not injected":         {want: NotInjected},
		"no proxy":             {change: func(p *corev1.Pod) { status(p); noProxy(p) }, want: NoProxyInject},
		"proxyless":            {change: proxy(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "DISABLE_ENVOY", Value: "true"}} }), want: Proxyless},
		"a bool that is none":  {change: proxy(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "DISABLE_ENVOY", Value: "yes"}} })},
		"a router":             {change: proxy(func(c *corev1.Container) { c.Args = []string{"proxy", "router"} }), want: NotSidecar},
		"a sidecar":            {change: proxy(func(c *corev1.Container) { c.Args = []string{"proxy", "sidecar"} })},
		"another command":      {change: proxy(func(c *corev1.Container) { c.Args = []string{"envoy", "router"} })},
		"inject false":         {change: func(p *corev1.Pod) { status(p); annotate("sidecar.istio.io/inject", "false")(p) }, want: InjectFalse},
		"inject no is no bool": {change: func(p *corev1.Pod) { status(p); annotate("sidecar.istio.io/inject", "no")(p) }},
		"the label wins": {change: func(p *corev1.Pod) {
			status(p)
			annotate("sidecar.istio.io/inject", "false")(p)
			p.Labels["sidecar.istio.io/inject"] = "true"
		}},
		"our own false still holds": {change: func(p *corev1.Pod) { status(p); annotate(KeyInitialize, "false")(p) }, want: OptedOut},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod, ns := asking(c.change)
			ns.Annotations = nil
			for _, sel := range []Selection{SelectInjected, SelectEither} {
				cfg := config()
				cfg.Select = sel
				got, err := Of(pod, ns, cfg)
				if err != nil || got.Reason != c.want {
					t.Errorf("%s: reason %q, error %v; want %q", sel, got.Reason, err, c.want)
				}
			}
		})
	}
	cfg := config()
	cfg.Select = SelectEither
	pod, ns := asking(nil)
	if got, err := Of(pod, ns, cfg); err != nil || !got.Redirect {
		t.Errorf("either, by annotation alone: %+v, %v", got, err)
	}
	cfg.Select = "neither"
	if _, err := Of(pod, ns, cfg); err == nil {
		t.Error("an unknown selection is accepted")
	}
}

func TestOf_annotations_becomeTheSpec(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	pod, ns := asking(func(p *corev1.Pod) {
		annotate(
			keyMode, "REDIRECT", keyIncludeCIDRs, " 10.0.0.1/8 ,fd00::/8", keyExcludeCIDRs, "", keyIncludeInbound, "80, 8080",
			keyExcludeInbound, "9090", keyIncludeOutbound, "443", keyExcludeOutbound, "",
			KeyOutboundPort, "16001", KeyInboundPort, "16006", KeyTunnelPort, "16008",
		)(p)
		p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{RunAsUser: id(2000)}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsGroup: id(0)}
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: id(5), RunAsGroup: id(3000)}
	})
	got, err := Of(pod, ns, config())
	if err != nil {
		t.Fatal(err)
	}
	list, _ := ownCIDRs("", "10.0.0.0/8,fd00::/8")
	want := iptables.DefaultSpec()
	want.OutboundPort, want.InboundPort, want.TunnelPort, want.ProxyUID, want.ProxyGID = 16001, 16006, 16008, 2000, 3000
	want.IncludeCIDRs, want.IncludeInboundPorts = iptables.CIDRs{List: list}, iptables.Ports{List: []uint16{80, 8080}}
	want.ExcludeInboundPorts = []uint16{9090, 15020, 15021, 15090}
	want.IncludeOutboundPorts, want.ExcludeOutboundPorts = []uint16{443}, nil
	if got.Spec.Hash() != want.Hash() {
		t.Errorf("got  %+v\nwant %+v", got.Spec, want)
	}
}

func TestOf_noAnnotations_takesDefaults(t *testing.T) {
	pod, ns := asking(nil)
	got, err := Of(pod, ns, config())
	if err != nil {
		t.Fatal(err)
	}
	want := iptables.DefaultSpec()
	want.ExcludeInboundPorts = []uint16{15020, 15020, 15021, 15090} // a double counts once in the rules
	if got.Spec.Hash() != want.Hash() {
		t.Errorf("got  %+v\nwant %+v", got.Spec, want)
	}
}

func TestDefaults_wrongValue_namesItsFlag(t *testing.T) {
	d := StandardDefaults()
	d[settingExcludeOutbound], d[settingOutboundPort], d[settingIncludeCIDRs] = "*", "0", "10.0.0.1"
	err := d.Validate()
	for _, want := range []string{"--exclude-outbound-ports", "--envoy-port", "--include-outbound-ip-ranges"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if err := StandardDefaults().Validate(); err != nil {
		t.Error(err)
	}
	d = StandardDefaults()
	d[settingExcludeOutbound] = "15002" // which would fail every pod
	if err := d.Validate(); err == nil || !strings.Contains(err.Error(), "--exclude-outbound-ports: port 15002") {
		t.Errorf("got %v", err)
	}
}

func TestSupports_handlerOfOtherKernel_isFalse(t *testing.T) {
	got := map[string]bool{}
	for _, h := range []string{"", "runc", "kata", "kata-qemu", "runsc", "runsc-debug"} {
		got[h] = config().Supports(h)
	}
	want := map[string]bool{"": true, "runc": true, "kata": false, "kata-qemu": false, "runsc": false, "runsc-debug": true}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
