/* ban.h: functions that must not compile in the library; include it after every other header.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_BAN_H
#define KVCI_BAN_H

#if defined(__GNUC__)
/* They have no bound, depend on the locale, print, or end the process. */
#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets
#pragma GCC poison strtod strtof strtol strtoul strtoll strtoull atoi atol atof sscanf
#pragma GCC poison setlocale printf puts putchar exit _exit abort signal sigaction system
#endif

#endif
