package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// authority signs every certificate of the control plane.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	// addresses are those that it certifies for all.
	addresses []net.IP
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "signalbox-test-ca"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(30 * 24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		addresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, nil
}

// issue signs a certificate that serves on the addresses and identifies its holder as name and groups.
func (a *authority) issue(name string, groups ...string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(30 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses:  a.addresses,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), nil
}

// serving writes tls.crt and tls.key, as webhook servers expect them, into a folder of the PKI.
func (a *authority) serving(l layout, component string, groups ...string) (dir string, err error) {
	dir = l.pki(component)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cert, key, err := a.issue(component, groups...)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), cert, 0o644); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600)
}

// identity is a client of the API server; its name is what the audit log shows.
type identity struct {
	file   string // of the kubeconfig; "" is the administrator's
	name   string
	groups []string
	// remote is one on a real node, which reaches the API server by the nodes' network.
	remote bool
}

const masters = "system:masters"

// identities are all the clients. What is not on trial (Kueue, JobSet, Trainer, KWOK) may do everything; Signalbox and
// the user have only the rights that RBAC gives them.
var identities = []identity{
	{file: "", name: "admin", groups: []string{masters}},
	{file: "user", name: "user"},
	{file: "signalbox", name: "signalbox"},
	{file: "kueue", name: "kueue", groups: []string{masters}},
	{file: "jobset", name: "jobset", groups: []string{masters}},
	{file: "trainer", name: "trainer", groups: []string{masters}},
	{file: "kwok", name: "kwok", groups: []string{masters}},
	{file: "kube-controller-manager", name: "system:kube-controller-manager"},
	{file: "kube-scheduler", name: "system:kube-scheduler"},
}

// writePKI makes the authority's file, the service account key and a kubeconfig for every identity; server returns each
// identity's address of the API server.
func writePKI(l layout, a *authority, clients []identity, server func(identity) string) error {
	if err := os.WriteFile(l.pki("ca.crt"), a.pem, 0o644); err != nil {
		return err
	}
	saKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	saPEM := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(saKey)})
	if err := os.WriteFile(l.pki("service-account.key"), saPEM, 0o600); err != nil {
		return err
	}
	for _, id := range clients {
		cert, key, err := a.issue(id.name, id.groups...)
		if err != nil {
			return fmt.Errorf("certificate of %s: %w", id.name, err)
		}
		config := clientcmdapi.NewConfig()
		config.Clusters["signalbox"] = &clientcmdapi.Cluster{Server: server(id), CertificateAuthorityData: a.pem}
		config.AuthInfos[id.name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
		config.Contexts["signalbox"] = &clientcmdapi.Context{Cluster: "signalbox", AuthInfo: id.name, Namespace: "default"}
		config.CurrentContext = "signalbox"
		if err := clientcmd.WriteToFile(*config, l.kubeconfig(id.file)); err != nil {
			return err
		}
	}
	return nil
}
