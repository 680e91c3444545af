package install

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

// scrape returns what a manager serves to Prometheus: over TLS, unless its configuration says otherwise. In the skew
// test, the chart of the commit before may.
func (s *stand) scrape(m *manager) string {
	s.Helper()
	config, err := configapi.Parse([]byte(m.base))
	s.must(err)
	url, token := "http://"+m.metrics+"/metrics", ""
	if config.Metrics.Secure {
		url, token = "https://"+m.metrics+"/metrics", s.prometheus()
	}
	text, status := s.read(url, token)
	if status != http.StatusOK {
		return ""
	}
	return text
}

// scrapers asks for metrics. A manager's certificate is its own.
var scrapers = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// read returns what an address serves to a client with a token, "" for none; status is 0 if nothing answers.
func (s *stand) read(url, token string) (text string, status int) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, url, nil)
	s.must(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := scrapers.Do(request)
	if err != nil {
		return err.Error(), 0
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil { // a TLS server answers HTTP, and closes the connection before it has read the request
		return err.Error(), response.StatusCode
	}
	return string(content), response.StatusCode
}

// prometheus returns a token of a ServiceAccount that has the chart's role for those who read metrics.
func (s *stand) prometheus() string {
	s.Helper()
	if s.token == "" {
		s.create(`
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: kube-system, name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus-signalbox}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: signalbox-metrics-reader}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: prometheus}]
`)
		s.token = s.tokenOf("kube-system", "prometheus")
	}
	return s.token
}

// tokenOf returns a token of a ServiceAccount.
func (s *stand) tokenOf(namespace, name string) string {
	s.Helper()
	seconds := int64(3600)
	token, err := s.clients.CoreV1().ServiceAccounts(namespace).CreateToken(s.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	s.must(err)
	return token.Status.Token
}

// protected holds that metrics are for those alone who have the chart's role.
func (s *stand) protected(m *manager) {
	s.Helper()
	nobody := s.tokenOf("kube-system", "default")
	for what, c := range map[string]struct {
		scheme, token string
		want          int
	}{
		"over HTTP":             {"http", s.prometheus(), http.StatusBadRequest},
		"without a token":       {"https", "", http.StatusUnauthorized},
		"without the role":      {"https", nobody, http.StatusForbidden},
		"with the chart's role": {"https", s.prometheus(), http.StatusOK},
	} {
		s.eventually("metrics "+what, func() (string, bool) {
			text, status := s.read(c.scheme+"://"+m.metrics+"/metrics", c.token)
			return fmt.Sprintf("%d: %.200s", status, text), status == c.want
		})
	}
}
